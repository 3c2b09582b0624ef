#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "trestle/device/random_tape.h"
#include "trestle/nn/detail/autocast_scope.h"
#include "trestle/nn/run_key.h"
#include "trestle/nn/snapshot.h"
#include "trestle/recompute/checkpoint_options.h"
#include "trestle/recompute/detail/checkpointed_forward.h"
#include "trestle/recompute/graph_leaves.h"
#include "trestle/recompute/hook_engine.h"
#include "trestle/recompute/recomputation.h"
#include "trestle/recompute/write_watch.h"

namespace trestle::recompute {

// One call of a checkpointed function, from its first run until its graph is freed. The graph owns
// it. Each tensor that autograd would have saved has a slot here, and unpacking it in the backward
// recomputes the function.
//
// Slots are numbered in the order in which tensors are saved; the recomputation saves the same
// tensors in the same order. Its results are kept for one backward (a graph task of the engine),
// each until it is taken.
class Region : public std::enable_shared_from_this<Region> {
 public:
  // For the calling thread. Inputs are saved as autograd saves tensors: inside of another region,
  // that region stores them, and they come from its recomputation.
  Region(const nn::CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
         std::shared_ptr<const nn::ModuleState> modules, RecomputeFunction function);

  // For the first run.
  RandomTape& tape() { return tape_; }
  const std::vector<at::Device>& gpus() const { return gpus_; }
  bool knows_modules() const { return modules_ != nullptr; }
  std::size_t add_slot(const at::Tensor& tensor);
  std::size_t slots() const;
  void set_runs_backward() { runs_backward_ = true; }
  // Ends the first run. `is_written`: the inputs whose copies the function wrote to. `leaves`: the
  // leaf tensors of the graph. `written`: in-place changes of tensors of unknown modules. Throws
  // UsageError if the function changed an input itself.
  void finish(const std::vector<bool>& is_written, std::vector<Leaf> leaves,
              std::vector<WriteWatch::Written> written);

  // From any thread. Waits for another thread only while that one recomputes the same region, never
  // for a backward.
  at::Tensor take(std::size_t slot);
  void release(std::size_t slot);  // the graph does not need it any more

 private:
  struct Slot {
    SavedTensor saved;
    Version version;
    bool needed = true;
  };
  struct Input {
    torch::autograd::SavedVariable saved;
    at::Tensor plain;  // None, and what autograd cannot save
    std::function<at::Tensor(const at::Tensor& kept)> restore;  // CheckpointOptions::keep_input
    bool requires_grad = false;
    bool is_written = false;
    Version version;
  };

  std::vector<at::Tensor> recompute();
  void check_unchanged() const;
  void record_versions();
  std::vector<at::Tensor> unpack_inputs() const;
  std::vector<at::Tensor> kept_buffers(std::vector<at::Tensor>& values) const;
  at::Tensor find(int task, std::size_t slot);
  void keep(int task, std::vector<at::Tensor> results);

  const nn::CheckpointOptions options_;
  const std::shared_ptr<const nn::ModuleState> modules_;
  const RecomputeFunction function_;
  std::vector<Input> inputs_;
  std::optional<nn::Snapshot> snapshot_;  // if the modules are known
  nn::AutocastState autocast_;
  std::optional<nn::LayerRun::Place> layer_run_;
  std::optional<at::Device> current_device_;  // of the accelerator
  std::vector<at::Device> gpus_;
  RandomTape tape_;
  std::vector<Leaf> leaves_;
  std::vector<WriteWatch::Written> written_;  // tensors of unknown modules
  std::vector<std::size_t> changed_buffers_;  // buffers of known modules
  std::atomic<bool> runs_backward_ = false;
  std::atomic<bool> finished_ = false;

  std::recursive_mutex running_;  // held during a recomputation, unless it runs a backward itself
  mutable std::mutex mutex_;      // guards the members below
  std::vector<Slot> slots_;
  std::map<int, std::vector<at::Tensor>> results_;  // by graph task
};

}  // namespace trestle::recompute
