#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/generate/generate.h"

namespace trestle::cli {

// The ranks that write texts with one split model. Rank 0 has the prompts and prints the texts. It
// sends the prompts of each batch to the other ranks, which do nothing else. One rank alone sends
// nothing.
class TextRanks {
 public:
  TextRanks() = default;  // one rank alone
  // All ranks of the group call it.
  explicit TextRanks(comm::Group group) : group_(std::move(group)) {}

  bool leads() const { return !group_.valid() || group_.rank() == 0; }
  bool alone() const { return !group_.valid(); }

  // On rank 0, before generate_batch() for these prompts.
  void begin(const std::vector<generate::Prompt>& prompts) const;
  // On rank 0, which will wait for its user: other ranks end at once when a signal arrives. Another
  // call before the deadline of the ranks lets them wait longer.
  void wait_for_user() const;
  // On rank 0, which waits for something else. The same, but other ranks keep handling signals.
  void wait() const;
  // On rank 0, behind the last text.
  void end() const;

  // On the other ranks: calls `write` for each begin() of rank 0 and `wait` for each
  // wait_for_user(), until its end().
  void follow(const std::function<void(const std::vector<generate::Prompt>&)>& write,
              const std::function<void()>& wait) const;

 private:
  comm::Group group_;
};

}  // namespace trestle::cli
