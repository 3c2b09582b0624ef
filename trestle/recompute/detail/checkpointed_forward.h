#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/recompute/checkpoint_options.h"

namespace trestle::nn {
struct ModuleState;
}

// The implementation of nn::checkpoint(), for helpers like checkpoint.h and checkpointed.h.
namespace trestle::recompute {

// A function with all its arguments but the tensors. Its results are not used: it is called for the
// tensors that autograd saves.
using RecomputeFunction = std::function<void(std::vector<at::Tensor> inputs)>;

// Whether the calling thread records a graph for a backward. If not, nothing needs recomputation.
bool gradients_are_on();

// The state of modules outside of any model; null if there are none.
std::shared_ptr<const nn::ModuleState> state_of(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

// The first run of a function, in the thread that runs it. While this object lives, tensors that
// autograd saves are not kept. checkpoint.h shows the order of calls.
class CheckpointedForward {
 public:
  // `inputs`: the inputs of a recomputation. `given`: the arguments of the first run, these or
  // copies of them. `modules`: the modules that the function uses, null if not known.
  CheckpointedForward(const nn::CheckpointOptions& options, std::vector<at::Tensor> inputs,
                      const std::vector<at::Tensor>& given,
                      std::shared_ptr<const nn::ModuleState> modules, RecomputeFunction function);
  ~CheckpointedForward();
  CheckpointedForward(const CheckpointedForward&) = delete;
  CheckpointedForward& operator=(const CheckpointedForward&) = delete;

  // Call it after the function, with the tensors that the function returned. Throws UsageError if
  // it wrote to an input that was not a copy. Returns whether a backward may recompute it.
  bool finish(const std::vector<at::Tensor>& outputs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trestle::recompute
