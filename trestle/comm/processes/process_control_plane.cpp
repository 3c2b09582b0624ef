#include "trestle/comm/processes/process_control_plane.h"

#include "trestle/base/text.h"
#include "trestle/comm/processes/watcher.h"
#include "trestle/launch/exit_status.h"
#include "trestle/launch/notes.h"

namespace trestle::comm {

using std::chrono::milliseconds;

namespace {

// Gloo's messages begin with a line of its source and end with advice about its own logs.
std::string cause_of(const std::string& error) {
  for (const char* const cause :
       {"Connection reset by peer", "Connection closed by peer", "Broken pipe", "No route to host",
        "Network is unreachable", "Connection refused"})
    if (error.find(cause) != std::string::npos) return cause;
  const auto end = error.starts_with('[') ? error.find("] ") : std::string::npos;
  return end == std::string::npos ? error : error.substr(end + 2);
}

}  // namespace

ProcessControlPlane::ProcessControlPlane(Facts facts, c10::intrusive_ptr<c10d::Store> store,
                                         c10::intrusive_ptr<c10d::Store> main_store)
    : main_store_(std::move(main_store)),
      watcher_(std::make_shared<Watcher>(std::move(facts), std::move(store), abort_list())),
      thread_([watcher = watcher_] { watcher->run(); }) {}

ProcessControlPlane::~ProcessControlPlane() {
  watcher_->goodbye();
  const auto& facts = watcher_->facts();
  const auto most = facts.hosts_store ? facts.deadline + milliseconds(2000) : milliseconds(1000);
  if (watcher_->wait_for_end(most))
    thread_.join();
  else
    thread_.detach();  // it is in a call to a store that does not answer
  if (watcher_->is_failure_settled()) launch::note_settled();
}

void ProcessControlPlane::fail(const std::string& reason) { watcher_->fail(reason); }
std::optional<std::string> ProcessControlPlane::failure() const { return watcher_->failure(); }
void ProcessControlPlane::report_status(std::string status) {
  watcher_->report_status(std::move(status));
}
std::string ProcessControlPlane::status_of(int rank) const { return watcher_->status_of(rank); }

std::string ProcessControlPlane::silent_ranks(const std::vector<int>& but) const {
  return watcher_->silent_ranks(but, IfNoneIsSilent::SayThatAllAreHeard);
}

// A connection breaks some milliseconds before its cause is visible in the store: the rank that
// failed publishes its reason, or the watcher detects that a process has ended.
std::string ProcessControlPlane::explain(const Broken& broken) {
  const auto end = std::chrono::steady_clock::now() + milliseconds(600);
  std::string reason;
  while (reason.empty() && !failure() && std::chrono::steady_clock::now() < end) {
    watcher_->poll_now(milliseconds(100));
    if (const auto left = watcher_->describe_left_rank(broken.awaited))
      reason = text(*left, ", but rank ", broken.rank, " waits for it in ", broken.call);
    else
      std::this_thread::sleep_for(milliseconds(10));
  }
  if (reason.empty()) reason = describe_broken_connection(broken);
  watcher_->fail(with_stall_note(reason));
  return *failure_with_stall_note();
}

std::string ProcessControlPlane::describe_broken_connection(const Broken& broken) const {
  const auto silent = watcher_->first_silent_rank(broken.awaited);
  const std::vector<int> others = silent ? std::vector<int>{*silent} : broken.awaited;
  std::string words =
      text("rank ", broken.rank, " lost its connection to ", launch::describe_ranks(others), " in ",
           broken.call, ": ", cause_of(broken.error), "; ", statuses(*this, others, broken.rank));
  if (silent) words += watcher_->silent_ranks(others, IfNoneIsSilent::SayNothing);
  return words;
}

std::string ProcessControlPlane::with_stall_note(std::string reason) const {
  return watcher_->with_stall_note(std::move(reason));
}

}  // namespace trestle::comm
