#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <optional>

// An event that orders the streams of two devices: "this tensor is ready".
//
//   StreamEvent ready;
//   ready.record(source);       // after the kernels that write the tensor
//   ready.wait(destination);    // before the kernels that read it
//
// On the CPU and on virtual devices all operators are synchronous and an event does nothing. On
// CUDA, and on virtual devices under a StreamCheck, it is an event of the calling thread's current
// stream.
namespace trestle::device {

class StreamEvent {
 public:
  // Marks the end of the work queued in the device's current stream. Recording again moves the
  // mark.
  void record(at::Device device);

  // Makes the device's current stream wait for the mark. The calling thread does not wait, except
  // for device = cpu, where the host waits. Does nothing if nothing was recorded.
  void wait(at::Device device) const;

  // Makes the given stream wait for the mark.
  void wait(const c10::Stream& stream) const;

  // Whether the mark has been reached. True if nothing was recorded.
  bool done() const;

 private:
  std::optional<c10::Event> event_;  // empty on synchronous devices
};

// Blocks the calling thread until the device has finished all queued work.
void synchronize(at::Device device);

}  // namespace trestle::device
