#include "trestle/comm/completion.h"

#include <utility>

#include "trestle/base/text.h"
#include "trestle/comm/rank_error.h"

namespace trestle::comm {

void Failed::raise() const {
  if (how == How::Deadline) throw DeadlineError(reason);
  throw RankError(reason);
}

std::string seconds_text(std::chrono::milliseconds time) {
  const auto tenths = (time.count() + 50) / 100;
  return tenths % 10 == 0 ? text(tenths / 10, " s") : text(tenths / 10, ".", tenths % 10, " s");
}

std::string deadline_message(std::chrono::milliseconds deadline, const std::string& what) {
  return text("waited longer than ", seconds_text(deadline), ": ", what);
}

Completion::Completion(std::shared_ptr<ControlPlane> control, std::chrono::milliseconds deadline,
                       std::function<std::string()> late)
    : control_(std::move(control)), deadline_(deadline), late_(std::move(late)) {}

void Completion::wait() {
  std::unique_lock lock(mutex_);
  if (!finished_.wait_for(lock, deadline_, [&] { return is_finished_; })) {
    lock.unlock();
    const std::string reason = control_->with_stall_note(deadline_message(deadline_, late_()));
    finish(Failed{Failed::How::Deadline, reason});
    control_->fail(reason);
    lock.lock();
    finished_.wait(lock, [&] { return is_finished_; });  // another thread's finish() may be running
  }
  auto failed = failed_;
  lock.unlock();
  if (!failed) return;
  if (failed->how == Failed::How::Left) {
    control_->fail(failed->reason);
    failed->reason = *control_->failure_with_stall_note();
  }
  failed->raise();
}

bool Completion::wait_for(std::chrono::milliseconds time) {
  {
    std::unique_lock lock(mutex_);
    const auto end = [&] { return is_finished_; };
    if (time < deadline_ && !finished_.wait_for(lock, time, end)) return false;
  }
  wait();
  return true;
}

bool Completion::done() {
  const std::lock_guard lock(mutex_);
  return is_finished_;
}

void Completion::finish(std::optional<Failed> failed) {
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_) return;
    is_ending_ = true;
    failed_ = std::move(failed);
  }
  // Only this thread uses then_ and failed_ now. then_ may own this completion: clearing it breaks
  // the reference cycle.
  if (const auto then = std::exchange(then_, nullptr)) then(failed_);
  {
    const std::lock_guard lock(mutex_);
    is_finished_ = true;
  }
  finished_.notify_all();
}

}  // namespace trestle::comm
