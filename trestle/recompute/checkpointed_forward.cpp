#include "trestle/recompute/detail/checkpointed_forward.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <optional>
#include <utility>

#include "trestle/nn/checkpointing.h"
#include "trestle/nn/snapshot.h"
#include "trestle/recompute/hook_engine.h"
#include "trestle/recompute/install.h"
#include "trestle/recompute/recomputed_nodes.h"
#include "trestle/recompute/region.h"
#include "trestle/recompute/write_watch.h"

namespace trestle::recompute {
namespace {

// A graph node's saved tensor: stores only a slot's number.
class SavedSlot final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedSlot(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  ~SavedSlot() override {
    if (slot_) region_->release(*slot_);
  }
  void call_pack_hook(const at::Tensor& tensor) override { slot_ = region_->add_slot(tensor); }
  at::Tensor call_unpack_hook() override { return region_->take(*slot_); }

 private:
  std::shared_ptr<Region> region_;
  std::optional<std::size_t> slot_;
};

class ForwardKeeper final : public TensorKeeper {
 public:
  explicit ForwardKeeper(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override {
    return std::make_unique<SavedSlot>(region_);
  }
  void record_backward() override { region_->set_runs_backward(); }

 private:
  std::shared_ptr<Region> region_;
};

// A checkpointed call inside of a recomputed function is not a first run for layers that ask.
nn::Checkpointing kind_of_this_run() {
  const auto around = nn::checkpointing();
  return around == nn::Checkpointing::Recompute ? around : nn::Checkpointing::First;
}

struct Scopes {
  Scopes(Region& region, TensorKeeper& keeper, const nn::CheckpointOptions& options)
      : checkpointing(kind_of_this_run()), scope(keeper) {
    if (!region.knows_modules()) watch.emplace();
    if (options.keep_random) record.emplace(region.tape(), region.gpus());
  }
  nn::CheckpointingScope checkpointing;
  std::optional<WriteWatch> watch;
  std::optional<RandomTape::Record> record;
  KeeperScope scope;
};

}  // namespace

struct CheckpointedForward::State {
  std::shared_ptr<Region> region;
  std::vector<at::Tensor> inputs;
  std::vector<bool> is_copy = {};
  std::vector<Version> given = {};
  std::uint64_t first_node = 0;
  std::optional<ForwardKeeper> keeper = {};
  std::optional<Scopes> scopes = {};
};

bool gradients_are_on() { return c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled(); }

std::shared_ptr<const nn::ModuleState> state_of(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  if (modules.empty()) return nullptr;
  nn::Graph graph;
  for (const auto& module : modules)
    graph.layers.push_back({.name = module->name(), .module = module, .forward = {}});
  return std::make_shared<nn::ModuleState>(
      nn::ModuleState::of(graph, 0, static_cast<int>(graph.layers.size())));
}

CheckpointedForward::CheckpointedForward(const nn::CheckpointOptions& options,
                                         std::vector<at::Tensor> inputs,
                                         const std::vector<at::Tensor>& given,
                                         std::shared_ptr<const nn::ModuleState> modules,
                                         RecomputeFunction function) {
  install();
  auto region = std::make_shared<Region>(options, inputs, std::move(modules), std::move(function));
  state_.reset(new State{.region = std::move(region),
                         .inputs = std::move(inputs),
                         .first_node = at::sequence_number::peek()});
  for (std::size_t i = 0; i < given.size(); ++i) {
    state_->is_copy.push_back(!given[i].is_same(state_->inputs[i]));
    state_->given.push_back(Version::of(given[i]));
  }
  state_->keeper.emplace(state_->region);
  state_->scopes.emplace(*state_->region, *state_->keeper, options);
}

CheckpointedForward::~CheckpointedForward() = default;

bool CheckpointedForward::finish(const std::vector<at::Tensor>& outputs) {
  std::vector<WriteWatch::Written> written;
  if (const auto& watch = state_->scopes->watch) written = watch->written(outputs);
  state_->scopes.reset();
  std::vector<bool> is_written;
  for (std::size_t i = 0; i < state_->given.size(); ++i)
    is_written.push_back(state_->is_copy[i] && state_->given[i].has_changed());
  state_->region->finish(is_written, leaves_of(outputs, state_->first_node, state_->inputs),
                         std::move(written));
  RecomputedNodes::add({.first = state_->first_node, .last = at::sequence_number::peek()});
  return state_->region->slots() > 0;
}

}  // namespace trestle::recompute
