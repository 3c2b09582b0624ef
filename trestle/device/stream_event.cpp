#include "trestle/device/stream_event.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "trestle/device/stream.h"

namespace trestle::device {

void StreamEvent::record(at::Device device) {
  if (is_synchronous(device)) {
    event_.reset();
    return;
  }
  if (!event_ || event_->device_type() != device.type()) event_.emplace(device.type());
  event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void StreamEvent::wait(at::Device device) const {
  if (!event_) return;
  if (is_synchronous(device)) {
    event_->synchronize();
  } else {
    event_->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

void StreamEvent::wait(const c10::Stream& stream) const {
  if (event_) event_->block(stream);
}

bool StreamEvent::done() const { return !event_ || event_->query(); }

void synchronize(at::Device device) {
  if (is_synchronous(device)) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.has_index() ? device.index() : guard.getDevice().index());
}

}  // namespace trestle::device
