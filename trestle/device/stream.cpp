#include "trestle/device/stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual/stream_order.h"

namespace trestle::device {

bool is_synchronous(at::Device device) {
  return device.is_cpu() || (virt::is_virtual(device) && !virt::checks_streams());
}

std::vector<c10::Stream> current_streams(const std::vector<at::Device>& devices) {
  std::vector<c10::Stream> streams;
  std::vector<at::DeviceType> seen;
  for (const at::Device device : devices) {
    if (is_synchronous(device) || std::find(seen.begin(), seen.end(), device.type()) != seen.end())
      continue;
    seen.push_back(device.type());
    const c10::impl::VirtualGuardImpl guard(device.type());
    for (at::DeviceIndex i = 0; i < guard.deviceCount(); ++i)
      streams.push_back(guard.getStream(at::Device(device.type(), i)));
  }
  return streams;
}

StreamScope::StreamScope(const std::vector<c10::Stream>& streams) {
  for (const c10::Stream& stream : streams)
    before_.push_back(c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream));
}

StreamScope::~StreamScope() {
  for (auto stream = before_.rbegin(); stream != before_.rend(); ++stream)
    c10::impl::VirtualGuardImpl(stream->device_type()).exchangeStream(*stream);
}

std::vector<c10::Stream> CopyStreams::between(at::Device from, at::Device to) {
  std::vector<at::Device> with_streams;
  for (const at::Device device : {from, to})
    if (!is_synchronous(device)) with_streams.push_back(device);
  if (with_streams.empty()) return {};
  const std::lock_guard lock(mutex_);
  auto& streams = streams_[{from.str(), to.str()}];
  if (streams.empty()) {
    for (const at::Device device : with_streams) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      streams.push_back(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
    }
  }
  return streams;
}

}  // namespace trestle::device
