#include "trestle/comm/processes/stall_detector.h"

#include <algorithm>

namespace trestle::comm {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

StallDetector::StallDetector(milliseconds deadline)
    : shortest_(std::max(milliseconds(1000), deadline / 2)) {}

void StallDetector::sleep_begins(Time now, milliseconds duration) {
  is_sleeping_ = true;
  sleep_began_ = now;
  wakes_at_ = now + duration;
}

void StallDetector::sleep_ends(Time now) {
  is_sleeping_ = false;
  operation_ended(sleep_began_, now, duration_cast<milliseconds>(wakes_at_ - sleep_began_));
}

void StallDetector::operation_ended(Time begin, Time now, milliseconds expected) {
  const milliseconds delay = duration_cast<milliseconds>(now - begin) - expected;
  if (delay < shortest_) return;
  stalled_for_ = delay;
  resumed_at_ = now;
}

milliseconds StallDetector::recent_stall(Time now) const {
  constexpr milliseconds memory{5000};
  // When a stopped process resumes, the sleeping thread may be the last to wake.
  if (is_sleeping_ && now - wakes_at_ >= shortest_)
    return duration_cast<milliseconds>(now - wakes_at_);
  return stalled_for_ > milliseconds::zero() && now - resumed_at_ < memory ? stalled_for_
                                                                           : milliseconds::zero();
}

}  // namespace trestle::comm
