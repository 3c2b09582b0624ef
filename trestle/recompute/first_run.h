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

// What is behind nn::checkpoint(), for who writes a helper of their own: checkpoint.h, checkpointed.h.
namespace trestle::recompute {

// A function, and all that it takes but the tensors. Its results are of no interest: what it does is
// save tensors for the backward.
using RunAgain = std::function<void(std::vector<at::Tensor> inputs)>;

// Is what the calling thread runs for a backward? Where not, nothing need be run again.
bool gradients_are_on();

// Of modules outside of any model; null where there are none.
std::shared_ptr<const nn::ModuleState> state_of(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

// The first run of a function, in the thread that runs it: while this lives, what autograd saves is not
// kept. The order of calls is that of checkpoint.h.
class FirstRun {
 public:
  // `inputs`: what a second run starts from. `given`: what the function gets now, these or copies of
  // them. `modules`: what the function uses, null where not known.
  FirstRun(const nn::CheckpointOptions& options, std::vector<at::Tensor> inputs,
           const std::vector<at::Tensor>& given, std::shared_ptr<const nn::ModuleState> modules,
           RunAgain run_again);
  ~FirstRun();
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

  // To be called behind the function, with the tensors that it returned. Throws UsageError if it wrote
  // to an input that was not a copy. Returns whether a backward may have to run it again.
  bool finish(const std::vector<at::Tensor>& outputs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trestle::recompute
