#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trestle::nn {

// An input of a checkpointed function as it is kept from the forward to the backward.
struct KeptInput {
  at::Tensor kept;
  // The input with the same values, for the recomputation. Empty: it is `kept`.
  std::function<at::Tensor(const at::Tensor& kept)> restore = {};
};

struct CheckpointOptions {
  // The recomputation ends as soon as it has everything that the backward needs.
  bool early_stop = true;
  // The recomputation draws the same random numbers. If false, dropout has another mask in the
  // backward than in the forward: for functions that draw no numbers, or if that is intended.
  bool keep_random = true;
  // The function gets copies of its tensors, and may write to them. If false, a function that
  // writes to its inputs is an error, since it could not be recomputed from them.
  bool copy_inputs = false;
  // Modules that the function uses. The recomputation sees their buffers and modes (train or eval,
  // requires_grad) as in the first run, and checks their parameters by name. If the function is
  // itself a module, it need not be listed. Without any modules, trestle tracks in-place changes of
  // tensors, such as the statistics of a batch norm, and restores them for the recomputation, so
  // that they change only once. This costs a little for each operator.
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};
  // Chooses what is kept of each input that autograd can save, such as this rank's share of it.
  // Empty: the input.
  std::function<KeptInput(const at::Tensor& input)> keep_input = {};
};

}  // namespace trestle::nn
