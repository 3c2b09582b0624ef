#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "trestle/device/random_tape.h"
#include "trestle/nn/autocast_scope.h"
#include "trestle/nn/snapshot.h"
#include "trestle/recompute/checkpoint_options.h"
#include "trestle/recompute/first_run.h"
#include "trestle/recompute/hook_engine.h"
#include "trestle/recompute/leaves.h"
#include "trestle/recompute/second_run.h"
#include "trestle/recompute/write_watch.h"

namespace trestle::recompute {

// One call of a checkpointed function, from its first run until the graph that it made goes. The graph
// owns it: each tensor that autograd would have saved is a place here, and taking it in the backward runs
// the function again.
//
// Places are counted in the order in which tensors are saved; the second run saves the same ones in the
// same order. Its results are kept for one backward (a graph task of the engine), each until it is taken.
class Region : public std::enable_shared_from_this<Region> {
 public:
  // Of the thread that calls. Inputs are saved as autograd saves tensors: where this region is inside of
  // another one, that one owns them, and they come from its second run.
  Region(const nn::CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
         std::shared_ptr<const nn::ModuleState> modules, RunAgain run_again);

  // For the first run.
  RandomTape& tape() { return tape_; }
  const std::vector<at::Device>& gpus() const { return gpus_; }
  bool knows_modules() const { return modules_ != nullptr; }
  std::size_t add_place(const at::Tensor& tensor);
  std::size_t places() const;
  void note_backward_inside() { runs_backward_ = true; }
  // That run is over. `is_written`: the inputs whose copies it wrote to. `leaves`, `written`: what the
  // graph begins with, and what the function changed in place of modules that are not known. Throws
  // UsageError where it changed an input itself.
  void finish(const std::vector<bool>& is_written, std::vector<Leaf> leaves,
              std::vector<WriteWatch::Written> written);

  // From any thread. Waits for another thread only where that one runs the function for the same
  // purpose, never for a backward.
  at::Tensor take(std::size_t place);
  void let_go(std::size_t place);  // the graph does not need it any more

 private:
  struct Place {
    Looks looks;
    Version version;
    bool needed = true;
  };
  struct Input {
    torch::autograd::SavedVariable saved;
    at::Tensor plain;  // None, and what autograd cannot save
    bool requires_grad = false;
    bool is_written = false;
    Version version;
  };

  std::vector<at::Tensor> run_again();
  void check_unchanged() const;
  void note_versions();
  std::vector<at::Tensor> unpack_inputs() const;
  std::vector<at::Tensor> kept_buffers(std::vector<at::Tensor>& values) const;
  at::Tensor find(int task, std::size_t place);
  void keep(int task, std::vector<at::Tensor> results);

  const nn::CheckpointOptions options_;
  const std::shared_ptr<const nn::ModuleState> modules_;
  const RunAgain run_again_;
  std::vector<Input> inputs_;
  std::optional<nn::Snapshot> snapshot_;  // where modules are known
  nn::AutocastState autocast_;
  std::optional<at::Device> current_device_;  // of accelerators
  std::vector<at::Device> gpus_;
  RandomTape tape_;
  std::vector<Leaf> leaves_;
  std::vector<WriteWatch::Written> written_;  // by the function, of modules that are not known
  std::vector<std::size_t> changed_buffers_;  // of modules that are
  std::atomic<bool> runs_backward_ = false;
  std::atomic<bool> finished_ = false;

  std::recursive_mutex running_;  // held during a second run, unless that runs a backward itself
  mutable std::mutex mutex_;      // of what is below
  std::vector<Place> places_;
  std::map<int, std::vector<at::Tensor>> results_;  // by graph task
};

}  // namespace trestle::recompute
