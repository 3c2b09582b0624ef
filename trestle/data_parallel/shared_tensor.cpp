#include "trestle/data_parallel/shared_tensor.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "trestle/device/stream.h"
#include "trestle/device/torch_versions.h"
#include "trestle/device/transfer.h"

namespace trestle::data_parallel {
namespace {

using torch::autograd::variable_list;

// The highest priority: a gradient is copied and freed while the backward of other layers runs.
constexpr std::uint64_t first_of_all = UINT64_MAX;

// Copies a gradient from a replica's device to the first one's. Runs in the backward thread of the
// replica's device.
struct CopyBackward : torch::autograd::Node {
  CopyBackward() : Node(first_of_all) {}

  at::Device to = at::kCPU;
  SharedTensor::Streams streams;
  std::shared_ptr<std::atomic<bool>> reached;

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    reached->store(true);
    // The copy is allocated for the stream that accumulates it, not for this thread's.
    const device::StreamScope forward_streams(*streams);
    return {to_device(gradients[0], to)};
  }
};

// Sums the gradients of all replicas but the first, always in the same order, on the first one's
// device. It also runs for a single gradient: autograd expects a parameter's gradient from the
// parameter's own stream.
struct SumBackward : torch::autograd::Node {
  SumBackward() : Node(first_of_all) {}

  variable_list apply(variable_list&& gradients) override {
    at::Tensor sum;
    for (at::Tensor& gradient : gradients) {
      if (!gradient.defined()) continue;
      sum = sum.defined() ? sum + gradient : gradient;
      gradient = at::Tensor();
    }
    return {sum};
  }
};

}  // namespace

SharedTensor::SharedTensor(std::string name, Kind kind, at::Tensor source,
                           std::vector<at::Tensor> copies,
                           std::shared_ptr<std::atomic<bool>> reached)
    : name_(std::move(name)),
      kind_(kind),
      source_(std::move(source)),
      copies_(std::move(copies)),
      reached_(std::move(reached)) {}

bool SharedTensor::alike(const at::Tensor& copy) const {
  return copy.scalar_type() == source_.scalar_type() && copy.sizes() == source_.sizes() &&
         copy.strides() == source_.strides();
}

void SharedTensor::refresh(Writes writes) {
  const at::NoGradGuard no_grad;
  const std::int64_t version = source_.is_inference() ? 0 : source_._version();
  const void* const data = source_.has_storage() ? source_.const_data_ptr() : nullptr;
  const bool seen = version != version_ || data != data_;
  version_ = version;
  data_ = data;
  if (!seen && writes == Writes::Seen) return;
  for (at::Tensor& copy : copies_) {
    if (!alike(copy)) {
      copy.detach_().requires_grad_(false);
      copy.set_data(source_.detach().to(copy.device(), /*non_blocking=*/false, /*copy=*/true));
    } else if (seen) {
      copy.copy_(source_);
    } else {
      copy.variable_data().copy_(source_);
    }
  }
}

void SharedTensor::link(const Streams& streams) {
  if (kind_ == Kind::Buffer) return;
  for (at::Tensor& copy : copies_) copy.detach_().requires_grad_(false);
  if (!source_.requires_grad()) return;
  auto sum = make_node<SumBackward>();
  sum->add_next_edge({torch::autograd::impl::grad_accumulator(source_), 0});
  for (const at::Tensor& copy : copies_) {
    auto node = make_node<CopyBackward>();
    node->to = source_.device();
    node->streams = streams;
    node->reached = reached_;
    node->add_next_edge({sum, sum->add_input_metadata(source_)});
    torch::autograd::set_history(copy, node);
  }
}

}  // namespace trestle::data_parallel
