#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <optional>

// The mark that orders two devices' streams: "this tensor is ready".
//
//   Event ready;
//   ready.record(source);       // after the kernels that write the tensor
//   ready.wait(destination);    // before the kernels that read it
//
// On the CPU and on virtual devices all operators are synchronous and an event does nothing. On
// CUDA, and on virtual devices whose streams are checked, it is an event of the calling thread's
// current stream.
namespace trestle::device {

class Event {
 public:
  // Marks what has been asked of the device's current stream so far.
  // Recording again moves the mark.
  void record(at::Device device);

  // The device's current stream goes on only when the mark is reached; the calling thread does not
  // wait, except for device = cpu, where the host does. Does nothing if nothing was recorded.
  void wait(at::Device device) const;

  // The same of another stream than the current one.
  void wait(const c10::Stream& stream) const;

  // Whether the mark has been reached. True if nothing was recorded.
  bool done() const;

 private:
  std::optional<c10::Event> event_;  // empty on synchronous devices
};

// The calling thread waits until the device has done everything asked of it.
void synchronize(at::Device device);

}  // namespace trestle::device
