#include "trestle/tokens/tokenizers/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <limits>
#include <new>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::tokens {
namespace {

// A run of a million spaces is one match; the stack grows only if such a run needs it.
constexpr std::size_t first_stack = std::size_t{32} << 10;
constexpr std::size_t most_stack = std::size_t{64} << 20;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct SplitPattern::Code {
  explicit Code(pcre2_code* given) : code(given) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  pcre2_code* code;
  bool compiled_to_machine_code = false;
};

struct SplitPattern::Workspace::Parts {
  explicit Parts(const pcre2_code* code)
      : match(pcre2_match_data_create_from_pattern(code, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(first_stack, most_stack, nullptr)) {
    if (match == nullptr || context == nullptr) throw std::bad_alloc();
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, std::numeric_limits<std::uint32_t>::max());
    pcre2_set_depth_limit(context, std::numeric_limits<std::uint32_t>::max());
  }
  ~Parts() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

SplitPattern::Workspace::Workspace(const SplitPattern& pattern)
    : parts_(std::make_unique<Parts>(pattern.code_->code)) {}
SplitPattern::Workspace::~Workspace() = default;
SplitPattern::Workspace::Workspace(Workspace&&) noexcept = default;

SplitPattern::SplitPattern(const std::string& pattern, std::string file) : file_(std::move(file)) {
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr);
  if (code == nullptr) {
    throw FormatError(text("pre_tokenizer: invalid regular expression (", pcre2_message(error),
                           " at byte ", place, " of its PCRE2 form)"),
                      {.file = file_});
  }
  code_ = std::make_unique<Code>(code);
  // Without machine code, where a system forbids it, pcre2_match() interprets the pattern.
  code_->compiled_to_machine_code = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
}
SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;

bool SplitPattern::find(std::string_view subject, std::size_t from, Workspace* workspace,
                        Match* match) const {
  const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
  auto& parts = *workspace->parts_;
  const int found =
      code_->compiled_to_machine_code
          ? pcre2_jit_match(code_->code, bytes, subject.size(), from, 0, parts.match, parts.context)
          : pcre2_match(code_->code, bytes, subject.size(), from, PCRE2_NO_UTF_CHECK, parts.match,
                        parts.context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    throw FormatError(text("pre_tokenizer: the regular expression failed on a text of ",
                           subject.size(), " bytes at byte ", from, ": ", pcre2_message(found)),
                      {.file = file_, .hint = "Split the text into shorter ones."});
  }
  const PCRE2_SIZE* place = pcre2_get_ovector_pointer(parts.match);
  *match = {place[0], place[1]};
  return true;
}

}  // namespace trestle::tokens
