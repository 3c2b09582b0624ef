#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace trestle::tokens {

// A regular expression that divides valid UTF-8 into words, compiled by PCRE2.
class SplitPattern {
 public:
  // A match as byte positions.
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  // The memory of one thread's matches. One pattern may be used by several threads, each with its
  // own workspace.
  class Workspace {
   public:
    explicit Workspace(const SplitPattern& pattern);
    ~Workspace();
    Workspace(Workspace&&) noexcept;

   private:
    friend class SplitPattern;
    struct Parts;
    std::unique_ptr<Parts> parts_;
  };

  // `pattern` is in PCRE2's syntax (split_syntax.h). Throws FormatError with the file if PCRE2
  // does not compile it.
  SplitPattern(const std::string& pattern, std::string file);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;

  // Finds the first match from `from` on; false if there is none.
  bool find(std::string_view text, std::size_t from, Workspace* workspace, Match* match) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string file_;
};

}  // namespace trestle::tokens
