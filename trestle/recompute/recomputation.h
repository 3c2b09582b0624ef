#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/nn/checkpointing.h"
#include "trestle/nn/detail/autocast_scope.h"
#include "trestle/recompute/detail/checkpointed_forward.h"
#include "trestle/recompute/hook_engine.h"
#include "trestle/recompute/recomputing.h"
#include "trestle/recompute/value_sample.h"

namespace trestle::recompute {

// The properties of a saved tensor that must be the same in both runs.
struct TensorMetadata {
  c10::DimVector sizes;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;

  static TensorMetadata of(const at::Tensor& tensor);
  std::string words() const;
  friend bool operator==(const TensorMetadata&, const TensorMetadata&) = default;
};

// A tensor that the first run saved.
struct SavedTensor {
  TensorMetadata metadata;
  ValueSample values;  // empty where they may differ
};

// The current device of an accelerator in use: operators without a given device run there.
std::optional<at::Device> current_accelerator();

// Whether two tensors are equal. False on a GPU, where comparing would stall the stream.
bool same_value(const at::Tensor& a, const at::Tensor& b);

// Restores the calling thread's context of the first run while it lives. Autocast's casts are
// repeated, because those of the first run belong to another graph.
struct RestoredContext {
  RestoredContext(std::optional<at::Device> device, const nn::AutocastState& state)
      : device_guard(device), autocast(state) {}

  c10::OptionalDeviceGuard device_guard;
  RecomputingScope recomputing;
  nn::CheckpointingScope checkpointing{nn::Checkpointing::Recompute};
  nn::AutocastScope autocast;
};

// Collects the tensors that a function saves in its recomputation, and stops it when all are there.
class Recomputation : public TensorKeeper, public std::enable_shared_from_this<Recomputation> {
 public:
  struct Options {
    bool early_stop = true;
    bool may_save_more =
        false;  // the first run is not over: a backward inside of it needs this one
  };
  Recomputation(std::vector<SavedTensor> expected, const Options& options);

  void call(const RecomputeFunction& function, std::vector<at::Tensor> inputs);
  // Replaces results that share memory with these by copies.
  void separate_from(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> take_results() { return std::move(results_); }

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;
  void record_backward() override {}

 private:
  class Hooks;
  void add(const at::Tensor& tensor);
  void check(std::size_t slot, const at::Tensor& tensor) const;

  const std::vector<SavedTensor> expected_;
  const Options options_;
  std::size_t saved_ = 0;
  std::vector<at::Tensor> results_;
};

}  // namespace trestle::recompute
