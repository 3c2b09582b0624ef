#pragma once

#include <utility>

#include "trestle/device/stream_event.h"
#include "trestle/device/transfer.h"
#include "trestle/pipeline/transport/stage_transport.h"

// How a message moves between two ranks of one process.
namespace trestle::pipeline {

// A slot for one message. `ready_` is an event after the operators that make its tensors. The
// consumer's device waits for the event and the copy; the producer's device continues with its next
// micro-batch. LocalTransport does the locking.
class Channel {
 public:
  bool full() const { return full_; }

  // Called in the thread, and with the current streams, that made the tensors.
  void put(Message message, at::Device producer) {
    message_ = std::move(message);
    producer_ = producer;
    ready_.record(producer);
    full_ = true;
  }

  // Empties the slot. Returns the message on `consumer`, as copies if that is another device.
  Message take(at::Device consumer, device::CopyStreams& copies) {
    full_ = false;
    Message message = std::exchange(message_, {});
    if (consumer == producer_) return message;
    for (auto& entry : message) {
      entry.value = copy_beside(entry.value, consumer, ready_, copies);
      entry.owned = true;
    }
    return message;
  }

 private:
  Message message_;
  at::Device producer_ = at::kCPU;
  device::StreamEvent ready_;
  bool full_ = false;
};

}  // namespace trestle::pipeline
