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

// The parts of DataParallel that do not depend on the module's type. Internal to data_parallel.h.
namespace trestle::data_parallel {

// One replica's tensors and modules. Each call reads the current ones.
struct ReplicaView {
  std::function<NamedTensors()> parameters, buffers;
  std::function<std::vector<std::shared_ptr<torch::nn::Module>>()> modules;
  std::function<void(at::Device)> to;  // parameters with their gradients, and buffers, in place
};
ReplicaView view_of(const std::shared_ptr<torch::nn::Module>& module);
ReplicaView view_of(const std::shared_ptr<nn::Layers>& layers);

// Clones the module to a device. Throws UsageError, with a hint, where it cannot be cloned.
std::shared_ptr<torch::nn::Module> clone(const torch::nn::Module& module, at::Device device);
[[noreturn]] void refuse_type(const torch::nn::Module& module);

// Makes a replica without changing the program's random number generators.
void run_apart(const std::function<void()>& make);

// Copies of one model on several devices; the first one is the user's. The other replicas hold its
// values. A backward through them accumulates in its parameters.
class Replicas {
 public:
  // Moves each replica to its device. Throws UsageError where they are not copies of each other.
  Replicas(std::vector<ReplicaView> views, std::vector<at::Device> devices);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  const std::vector<at::Device>& devices() const { return devices_; }

  // Copies the first replica's values, training modes and requires_grad to all replicas, and runs
  // job(r) for r < count at the same time, each in the caller's grad mode, autocast and streams.
  // Rethrows what a job throws, with its device. Throws StateError for a call within a call, and
  // UsageError where the first model was moved from its device.
  void run(std::size_t count, const std::function<void(std::size_t)>& job);
  // Copies the first replica's values to all replicas, changed or not.
  void refresh();

 private:
  struct State;
  std::vector<at::Device> devices_;
  std::unique_ptr<State> state_;
};

}  // namespace trestle::data_parallel
