#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

// The queues of work of a device. Operators of a GPU are put into the calling thread's current
// stream of that device and run later; those of the CPU and of virtual devices have finished when
// they return (but see stream_check.h).
namespace trestle::device {

// Have operators finished when they return?
bool is_synchronous(at::Device device);

// The calling thread's current streams, of all devices of the kinds that `devices` are of; none of
// synchronous ones.
std::vector<c10::Stream> current_streams(const std::vector<at::Device>& devices);

// Makes the given streams the calling thread's current ones while it lives.
//
//   const auto streams = current_streams({device});       // the caller's
//   std::thread worker([&] { const StreamScope scope(streams); });  // works on in the same ones
class StreamScope {
 public:
  explicit StreamScope(const std::vector<c10::Stream>& streams);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  std::vector<c10::Stream> before_;
};

// Streams for copies alone, two for each pair of devices and way, so that a copy runs beside the
// computation of both and waits for no other copy. Several threads may use one object.
class CopyStreams {
 public:
  // The streams of copies from one device to the other: on the one, and on the other; only those of
  // devices that are not synchronous.
  std::vector<c10::Stream> between(at::Device from, at::Device to);

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::vector<c10::Stream>> streams_;
};

}  // namespace trestle::device
