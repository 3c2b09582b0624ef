#include "trestle/comm/threads/thread_board.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/thread_hub.h"

namespace trestle::comm {

ThreadBoard::ThreadBoard(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

void ThreadBoard::fail(const std::string& reason) {
  std::vector<std::shared_ptr<ThreadHub>> hubs;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = reason;
    for (const auto& [number, hub] : hubs_) hubs.push_back(hub);
  }
  for (const auto& hub : hubs) hub->kill(reason);
}

std::optional<std::string> ThreadBoard::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ThreadBoard::report_status(int rank, std::string status) {
  const std::lock_guard lock(mutex_);
  Rank& known = ranks_.at(static_cast<std::size_t>(rank));
  known.status = std::move(status);
  known.said = std::chrono::steady_clock::now();
}

std::string ThreadBoard::describe(const Rank& rank) const {
  const std::string last =
      describe_status(rank.status, std::chrono::duration_cast<std::chrono::milliseconds>(
                                       std::chrono::steady_clock::now() - rank.said));
  return rank.has_left ? last + ", and has returned" : last;
}

void ThreadBoard::leave(int rank) {
  std::string status;
  std::vector<std::shared_ptr<ThreadHub>> hubs;
  {
    const std::lock_guard lock(mutex_);
    Rank& known = ranks_.at(static_cast<std::size_t>(rank));
    known.has_left = true;
    status = known.status;
    for (const auto& [number, hub] : hubs_) hubs.push_back(hub);
  }
  for (const auto& hub : hubs) hub->leave(rank, status);
}

std::string ThreadBoard::status_of(int rank) const {
  const std::lock_guard lock(mutex_);
  return describe(ranks_.at(static_cast<std::size_t>(rank)));
}

std::shared_ptr<ThreadHub> ThreadBoard::hub(int number, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  auto& hub = hubs_[number];
  if (!hub) {
    hub = std::make_shared<ThreadHub>(ranks);
    if (failure_) hub->kill(*failure_);
    for (int rank = 0; rank < size(); ++rank) {
      const Rank& known = ranks_[static_cast<std::size_t>(rank)];
      if (known.has_left) hub->leave(rank, known.status);
    }
  }
  if (hub->ranks() != ranks)
    throw UsageError(text("ranks make different groups: [", join(hub->ranks(), ", "), "] and [",
                          join(ranks, ", "), "]"),
                     {.hint = "Every rank makes the same groups in the same order."});
  return hub;
}

std::string ThreadControlPlane::explain(const Broken& broken) {
  fail(text("rank ", broken.rank, " in ", broken.call, ": ", broken.error));
  return *failure();
}

}  // namespace trestle::comm
