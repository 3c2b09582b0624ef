#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "trestle/device/event.h"
#include "trestle/device/transfer.h"
#include "trestle/pipeline/stage_value.h"

// How tensors pass from one rank to another inside one process.
namespace trestle::pipeline {

// What one route carries for one micro-batch: activations, or their gradients.
using Message = std::vector<StageValue>;

struct DeviceCopy {
  at::Tensor operator()(const at::Tensor& tensor, at::Device device) const {
    return to_device(tensor, device);
  }
};

// One place for one message. The devices work asynchronously, so two events order them: `ready`
// (the producer's device has made the tensors) is waited for before they are read, and `consumed`
// (the consumer's device has copied them) before the producer's device may reuse their memory. Who
// calls put() and take() when, and under which lock, is ChannelTable's business.
//
// The event and the copy are parameters so that a test can put in an event that watches the order.
template <class EventType, class Copy = DeviceCopy>
class BasicChannel {
 public:
  bool full() const { return full_; }

  void put(Message message, at::Device producer) {
    message_ = std::move(message);
    producer_ = producer;
    ready_.record(producer);
    full_ = true;
  }

  // Leaves the channel empty. The result lives on `consumer`, which owns it unless it is the
  // producer's own device.
  Message take(at::Device consumer) {
    full_ = false;
    Message message = std::move(message_);
    message_ = {};
    if (consumer == producer_) return message;
    ready_.wait(consumer);
    Message copy = message;
    for (auto& entry : copy) {
      entry.value = Copy()(entry.value, consumer);
      entry.owned = true;
    }
    consumed_.record(consumer);
    consumed_.wait(producer_);
    return copy;  // the producer's tensors are released here, after its device was told to wait
  }

 private:
  Message message_;
  at::Device producer_ = at::kCPU;
  EventType ready_;
  EventType consumed_;
  bool full_ = false;
};

using Channel = BasicChannel<device::Event>;

}  // namespace trestle::pipeline
