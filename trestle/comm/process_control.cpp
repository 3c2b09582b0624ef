#include "trestle/comm/process_control.h"

#include "trestle/base/text.h"
#include "trestle/comm/watcher.h"

namespace trestle::comm {

using std::chrono::milliseconds;

ProcessControl::ProcessControl(Facts facts, c10::intrusive_ptr<c10d::Store> store,
                               c10::intrusive_ptr<c10d::Store> main_store)
    : main_store_(std::move(main_store)),
      watcher_(std::make_shared<Watcher>(std::move(facts), std::move(store), breaks())),
      thread_([watcher = watcher_] { watcher->run(); }) {}

ProcessControl::~ProcessControl() {
  watcher_->goodbye();
  const auto& facts = watcher_->facts();
  const auto most = facts.holds_store ? facts.deadline + milliseconds(2000) : milliseconds(1000);
  if (watcher_->wait_for_end(most))
    thread_.join();
  else
    thread_.detach();  // in a call to a store that does not answer
}

void ProcessControl::fail(const std::string& reason) { watcher_->fail(reason); }
std::optional<std::string> ProcessControl::failure() const { return watcher_->failure(); }
void ProcessControl::say_status(std::string status) { watcher_->say(std::move(status)); }
std::string ProcessControl::status_of(int rank) const { return watcher_->status_of(rank); }

std::string ProcessControl::silent_ranks(const std::vector<int>& but) const {
  return watcher_->silent_ranks(but);
}

// A connection breaks some milliseconds before anybody can know why: the rank that failed tells the
// store before it closes connections, and a process that was killed is seen to be gone.
std::string ProcessControl::explain(const Broken& broken) {
  const auto end = std::chrono::steady_clock::now() + milliseconds(600);
  std::string reason;
  while (reason.empty() && !failure() && std::chrono::steady_clock::now() < end) {
    watcher_->look_now(milliseconds(100));
    if (const auto left = watcher_->who_left(broken.awaited))
      reason = text(*left, ", and rank ", broken.rank, " waits for it in ", broken.call);
    else
      std::this_thread::sleep_for(milliseconds(10));
  }
  const std::string where = text("rank ", broken.rank, " in ", broken.call, ": ", broken.error);
  if (const auto silent = watcher_->who_is_silent(broken.awaited); reason.empty() && silent)
    reason = text("rank ", *silent, " ", status_of(*silent), ": ", where);
  if (reason.empty()) reason = text("a connection broke: ", where);
  watcher_->fail(own_words(reason));
  return *failure_in_own_words();
}

std::string ProcessControl::own_words(std::string reason) const {
  return watcher_->own_words(std::move(reason));
}

}  // namespace trestle::comm
