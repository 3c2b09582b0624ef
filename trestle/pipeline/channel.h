#pragma once

#include <utility>

#include "trestle/device/event.h"
#include "trestle/device/transfer.h"
#include "trestle/pipeline/stage_transport.h"

// How tensors pass from one rank to another inside one process.
namespace trestle::pipeline {

// One place for one message. `ready` marks when the producer's device has made the tensors; the
// consumer's device waits for that and for the copy, and the producer's goes on with its next
// micro-batch meanwhile. Who calls put() and take() when, and under which lock, is LocalTransport's
// business.
class Channel {
 public:
  bool full() const { return full_; }

  // In the thread, and with the current streams, that made the tensors.
  void put(Message message, at::Device producer) {
    message_ = std::move(message);
    producer_ = producer;
    ready_.record(producer);
    full_ = true;
  }

  // Leaves the channel empty. The result lives on `consumer`, which owns it unless it is the
  // producer's own device.
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
  device::Event ready_;
  bool full_ = false;
};

}  // namespace trestle::pipeline
