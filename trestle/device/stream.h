#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

// The work queues of a device. A GPU's operators are queued in the calling thread's current stream
// of that device and run later. Those of the CPU and of virtual devices have finished when they
// return (but see stream_check.h).
namespace trestle::device {

// Whether the device's operators have finished when they return.
bool is_synchronous(at::Device device);

// The calling thread's current streams of all devices that have the type of one of `devices`.
// Synchronous devices have none.
std::vector<c10::Stream> current_streams(const std::vector<at::Device>& devices);

// Makes the given streams current in the calling thread while it lives.
//
//   const auto streams = current_streams({device});       // the caller's
//   std::thread worker([&] { const StreamScope scope(streams); });  // uses the same streams
class StreamScope {
 public:
  explicit StreamScope(const std::vector<c10::Stream>& streams);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  std::vector<c10::Stream> before_;
};

// Streams only for copies, two for each ordered pair of devices, so that a copy overlaps with the
// computation of both and waits for no other copy. Several threads may use one object.
class CopyStreams {
 public:
  // The streams for copies from one device to the other: one on each device that is not
  // synchronous.
  std::vector<c10::Stream> between(at::Device from, at::Device to);

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::vector<c10::Stream>> streams_;
};

}  // namespace trestle::device
