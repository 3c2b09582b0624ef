#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/nn/layers.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

// What DataParallel does that does not depend on the module's type. Internal to data_parallel.h.
namespace trestle::sharding::detail {

// One replica's tensors and modules, as they are when it is asked.
struct ReplicaView {
  std::function<NamedTensors()> parameters, buffers;
  std::function<std::vector<std::shared_ptr<torch::nn::Module>>()> modules;
  std::function<void(at::Device)> to;  // parameters with their gradients, and buffers, in place
};
ReplicaView view_of(const std::shared_ptr<torch::nn::Module>& module);
ReplicaView view_of(const std::shared_ptr<nn::Layers>& layers);

// The module's copy on a device. Throws UsageError, with both ways out, where it cannot be cloned.
std::shared_ptr<torch::nn::Module> clone(const torch::nn::Module& module, at::Device device);
[[noreturn]] void refuse_type(const torch::nn::Module& module);

// Makes a replica so that the random numbers of the rest of the program stay as they are.
void run_apart(const std::function<void()>& make);

// Copies of one model on several devices, of which the first one is the user's. The others'
// parameters have its values, and a backward through them ends at its parameters.
class Replicas {
 public:
  // Moves each view to its device. Throws UsageError where they are not copies of each other.
  Replicas(std::vector<ReplicaView> views, std::vector<at::Device> devices);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  const std::vector<at::Device>& devices() const { return devices_; }

  // Brings all replicas to the first one's values, modes and requires_grad, and runs job(r) for r <
  // count at the same time, each in the caller's grad mode, autocast and streams. Throws what a job
  // throws, with its device; StateError for a call within a call, and UsageError where the first
  // model is not on its device any more.
  void run(std::size_t count, const std::function<void(std::size_t)>& job);
  // The same without a run: the copies take over the first one's values now, changed or not.
  void refresh();

 private:
  struct State;
  std::vector<at::Device> devices_;
  std::unique_ptr<State> state_;
};

}  // namespace trestle::sharding::detail
