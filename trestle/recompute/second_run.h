#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/nn/autocast_scope.h"
#include "trestle/nn/checkpointing.h"
#include "trestle/recompute/first_run.h"
#include "trestle/recompute/hook_engine.h"
#include "trestle/recompute/recomputing.h"

namespace trestle::recompute {

// What must be the same of a saved tensor in both runs.
struct Looks {
  c10::DimVector sizes;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;

  static Looks of(const at::Tensor& tensor);
  std::string words() const;
  friend bool operator==(const Looks&, const Looks&) = default;
};

// Where operators go that name no device: the current one of an accelerator that is in use.
std::optional<at::Device> current_accelerator();

// On a GPU comparing would hold its stream up, so there the answer is no.
bool same_value(const at::Tensor& a, const at::Tensor& b);

// The calling thread is as it was in the first run, while it lives. Its casts are made anew: those of the
// first run have another graph.
struct Surroundings {
  Surroundings(std::optional<at::Device> device, const nn::AutocastState& state)
      : device_guard(device), autocast(state) {}

  c10::OptionalDeviceGuard device_guard;
  RecomputingScope recomputing;
  nn::CheckpointingScope checkpointing{nn::Checkpointing::Recompute};
  nn::AutocastScope autocast;
};

// Gathers what a function saves in its second run, and ends it as soon as that is all.
class SecondRun : public TensorKeeper, public std::enable_shared_from_this<SecondRun> {
 public:
  struct Options {
    bool early_stop = true;
    bool may_go_on = false;  // the first run is not over: a backward inside of it needs this one
  };
  SecondRun(std::vector<Looks> expected, const Options& options);

  void call(const RunAgain& function, std::vector<at::Tensor> inputs);
  // Results that share memory with these become copies.
  void separate_from(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> take_results() { return std::move(results_); }

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;
  void note_backward() override {}

 private:
  class Hooks;
  void add(const at::Tensor& tensor);

  const std::vector<Looks> expected_;
  const Options options_;
  std::size_t saved_ = 0;
  std::vector<at::Tensor> results_;
};

}  // namespace trestle::recompute
