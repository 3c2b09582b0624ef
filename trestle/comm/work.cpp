#include "trestle/comm/work.h"

#include "trestle/comm/completion.h"

namespace trestle::comm {

void Work::wait() {
  if (state_) state_->wait();
}

bool Work::wait_for(std::chrono::milliseconds time) { return !state_ || state_->wait_for(time); }

bool Work::done() const { return !state_ || state_->done(); }

}  // namespace trestle::comm
