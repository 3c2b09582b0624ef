#include "trestle/recompute/first_run.h"

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
#include "trestle/recompute/region.h"
#include "trestle/recompute/write_watch.h"

namespace trestle::recompute {
namespace {

// What a node of the graph has instead of a tensor.
class PlaceOfTensor final : public torch::autograd::SavedVariableHooks {
 public:
  explicit PlaceOfTensor(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  ~PlaceOfTensor() override {
    if (place_) region_->let_go(*place_);
  }
  void call_pack_hook(const at::Tensor& tensor) override { place_ = region_->add_place(tensor); }
  at::Tensor call_unpack_hook() override { return region_->take(*place_); }

 private:
  std::shared_ptr<Region> region_;
  std::optional<std::size_t> place_;
};

class FirstKeeper final : public TensorKeeper {
 public:
  explicit FirstKeeper(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override {
    return std::make_unique<PlaceOfTensor>(region_);
  }
  void note_backward() override { region_->note_backward_inside(); }

 private:
  std::shared_ptr<Region> region_;
};

// In a function that is run again, a call inside of it is no first run to a layer that counts.
nn::Checkpointing run_of_this() {
  const auto around = nn::checkpointing();
  return around == nn::Checkpointing::Recompute ? around : nn::Checkpointing::First;
}

struct Scopes {
  Scopes(Region& region, TensorKeeper& keeper, const nn::CheckpointOptions& options)
      : checkpointing(run_of_this()), scope(keeper) {
    if (!region.knows_modules()) watch.emplace();
    if (options.keep_random) record.emplace(region.tape(), region.gpus());
  }
  nn::CheckpointingScope checkpointing;
  std::optional<WriteWatch> watch;
  std::optional<RandomTape::Record> record;
  KeeperScope scope;
};

}  // namespace

struct FirstRun::State {
  std::shared_ptr<Region> region;
  std::vector<at::Tensor> inputs;
  std::vector<bool> is_copy = {};
  std::vector<Version> given = {};
  std::uint64_t first_node = 0;
  std::optional<FirstKeeper> keeper = {};
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

FirstRun::FirstRun(const nn::CheckpointOptions& options, std::vector<at::Tensor> inputs,
                   const std::vector<at::Tensor>& given,
                   std::shared_ptr<const nn::ModuleState> modules, RunAgain run_again) {
  install();
  auto region = std::make_shared<Region>(options, inputs, std::move(modules), std::move(run_again));
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

FirstRun::~FirstRun() = default;

bool FirstRun::finish(const std::vector<at::Tensor>& outputs) {
  std::vector<WriteWatch::Written> written;
  if (const auto& watch = state_->scopes->watch) written = watch->written(outputs);
  state_->scopes.reset();
  std::vector<bool> is_written;
  for (std::size_t i = 0; i < state_->given.size(); ++i)
    is_written.push_back(state_->is_copy[i] && state_->given[i].has_changed());
  state_->region->finish(is_written, leaves_of(outputs, state_->first_node, state_->inputs),
                         std::move(written));
  return state_->region->places() > 0;
}

}  // namespace trestle::recompute
