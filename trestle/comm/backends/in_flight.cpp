#include "trestle/comm/backends/in_flight.h"

#include <exception>

#include "trestle/comm/backends/backend_calls.h"

namespace trestle::comm {

void InFlight::begin(const std::shared_ptr<Completion>& completion) {
  std::optional<std::string> broken;
  {
    const std::lock_guard lock(mutex_);
    broken = broken_;
    if (!broken) completions_.insert(completion);
  }
  if (broken) completion->finish(Failed{Failed::How::Rank, *broken});
}

void InFlight::end(const std::shared_ptr<Completion>& completion) {
  const std::lock_guard lock(mutex_);
  completions_.erase(completion);
}

void InFlight::wait(c10d::Work& work, std::chrono::milliseconds deadline) {
  {
    const std::lock_guard lock(mutex_);
    works_.insert(&work);
    if (broken_) work.abort();
  }
  std::exception_ptr error;
  try {
    wait_for(work, deadline);
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    works_.erase(&work);
  }
  if (error) std::rethrow_exception(error);
}

void InFlight::abort_all(const std::string& reason) {
  std::set<std::shared_ptr<Completion>> completions;
  {
    const std::lock_guard lock(mutex_);
    if (!broken_) broken_ = reason;
    completions.swap(completions_);
    for (c10d::Work* work : works_) work->abort();
  }
  for (const auto& completion : completions) completion->finish(Failed{Failed::How::Rank, reason});
}

}  // namespace trestle::comm
