#include "trestle/device/clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "trestle/device/stream.h"
#include "trestle/device/stream_event.h"

namespace trestle::device {
namespace {

// Times between events are milliseconds in single precision: accurate to 4 us after a minute.
constexpr double resync_after = 60;

c10::Event timed_event(at::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

double Clock::Mark::seconds() const {
  if (!event_) return host_;
  event_->synchronize();
  return start_->seconds + start_->event.elapsedTime(*event_) / 1e3;
}

std::shared_ptr<const Clock::Start> Clock::start_of(at::Device device) {
  const std::lock_guard lock(mutex_);
  auto& start = starts_[device.str()];
  if (!start || now() - start->seconds > resync_after) {
    synchronize(device);
    c10::Event event = timed_event(device);
    event.synchronize();
    start = std::make_shared<const Start>(Start{std::move(event), now()});
  }
  return start;
}

Clock::Mark Clock::mark(at::Device device) {
  Mark mark;
  if (is_synchronous(device)) {
    mark.host_ = now();
  } else {
    mark.start_ = start_of(device);
    mark.event_ = std::make_shared<const c10::Event>(timed_event(device));
  }
  return mark;
}

}  // namespace trestle::device
