#include "trestle/nn/lazy_module.h"

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/error_context.h"
#include "trestle/device/keyed_random.h"

namespace trestle::nn {

struct LazyModule::State {
  // Recursive, so that a factory that needs its own module gets an error instead of a deadlock.
  std::recursive_mutex mutex;
  std::shared_ptr<torch::nn::Module> module;
  Factory factory;
  bool is_being_made = false;
  std::uint64_t seed = 0;
  std::string name;
  std::vector<Tie> ties;
  std::vector<Slicer> slicers;
  ParameterSlices slices;
  std::optional<Mode> mode;  // from train() or eval() before the module was created
};

LazyModule::LazyModule(std::shared_ptr<torch::nn::Module> module) {
  if (!module) return;
  state_ = std::make_shared<State>();
  state_->module = std::move(module);
}

LazyModule::LazyModule(Factory factory) : state_(std::make_shared<State>()) {
  state_->factory = std::move(factory);
}

namespace {

// Runs it as at the top of a program, whatever the caller's modes: parameters created in inference
// mode could never be trained.
std::shared_ptr<torch::nn::Module> run_factory(const LazyModule::Factory& factory,
                                               std::uint64_t seed, const std::string& name) {
  const c10::InferenceMode no_inference(false);
  const at::AutoGradMode gradients(true);
  const KeyedRandom random(at::kCPU, initial_seed(seed, name));
  std::shared_ptr<torch::nn::Module> module = factory();
  if (!module) throw UsageError("the factory returned no module");
  return module;
}

void apply_tie(const LazyModule::Tie& tie, torch::nn::Module& module) {
  const at::Tensor source = find_parameter(*tie.source.make(), tie.source_parameter);
  replace_parameter(module, tie.parameter, source, tie.find_member);
}

}  // namespace

std::shared_ptr<torch::nn::Module> LazyModule::make() const {
  if (!state_) return nullptr;
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.module) return s.module;
  if (s.is_being_made) {
    throw StateError(text("the factory of layer '", s.name, "' needs the layer that it creates"));
  }
  s.is_being_made = true;
  try {
    const std::shared_ptr<torch::nn::Module> module = run_factory(s.factory, s.seed, s.name);
    s.slices.clear();
    for (const Slicer& slicer : s.slicers) s.slices.merge(slicer(*module));
    for (const Tie& tie : s.ties) apply_tie(tie, *module);
    if (s.mode) module->train(s.mode == Mode::Train);
    s.module = module;
  } catch (...) {
    s.is_being_made = false;
    rethrow_with_context(text("while creating layer '", s.name, "'"));
  }
  s.is_being_made = false;
  s.factory = nullptr;  // also frees its captures
  return s.module;
}

std::shared_ptr<void> LazyModule::make_temporarily() const {
  if (!state_) return nullptr;
  Factory factory;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->module) return nullptr;
    factory = state_->factory;
  }
  make();
  const std::lock_guard lock(state_->mutex);
  state_->factory = std::move(factory);
  return {state_.get(), [state = state_](void*) {
            const std::lock_guard inner(state->mutex);
            state->module = nullptr;
          }};
}

std::shared_ptr<torch::nn::Module> LazyModule::made() const {
  if (!state_) return nullptr;
  const std::lock_guard lock(state_->mutex);
  return state_->module;
}

const void* LazyModule::identity() const {
  if (const auto module = made()) return module.get();
  return state_.get();
}

std::uint64_t LazyModule::seed() const {
  if (!state_) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->seed;
}

void LazyModule::set_key(std::uint64_t seed, std::string full_name) const {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->seed = seed;
  state_->name = std::move(full_name);
}

void LazyModule::slice(Slicer slicer) const {
  if (!state_) throw UsageError("a function has no parameters to slice");
  const std::lock_guard lock(state_->mutex);
  if (state_->module) state_->slices.merge(slicer(*state_->module));
  state_->slicers.push_back(std::move(slicer));
}

ParameterSlices LazyModule::slices() const {
  if (!state_) return {};
  const std::lock_guard lock(state_->mutex);
  if (!state_->slicers.empty()) make();
  return state_->slices;
}

bool LazyModule::needs(const LazyModule& other) const {
  if (identity() == other.identity()) return true;
  return std::any_of(state_->ties.begin(), state_->ties.end(),
                     [&](const Tie& tie) { return tie.source.needs(other); });
}

void LazyModule::add_tie(Tie tie) const {
  if (!state_ || !tie.source) throw UsageError("a function has no parameters to tie");
  if (tie.source.needs(*this)) {
    throw UsageError(
        text("cannot tie '", tie.parameter, "' to a layer that is the same one or is tied to it"),
        {.hint = "One of the layers owns the parameter; tie the other layers to that one."});
  }
  const std::lock_guard lock(state_->mutex);
  if (state_->module) apply_tie(tie, *state_->module);
  state_->ties.push_back(std::move(tie));
}

std::vector<std::string> LazyModule::tied_parameters() const {
  std::vector<std::string> names;
  if (!state_) return names;
  const std::lock_guard lock(state_->mutex);
  for (const Tie& tie : state_->ties) names.push_back(tie.parameter);
  return names;
}

void LazyModule::replace_tied(const std::string& parameter, const at::Tensor& tensor) const {
  if (state_) {
    const std::lock_guard lock(state_->mutex);
    for (const Tie& tie : state_->ties) {
      if (tie.parameter != parameter || !state_->module) continue;
      return replace_again(*state_->module, parameter, tensor, tie.find_member);
    }
  }
  throw StateError(text("internal: '", parameter, "' is not a tied parameter of a created layer"));
}

void LazyModule::set_mode(Mode mode) const {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->mode = mode;
  if (state_->module) state_->module->train(mode == Mode::Train);
}

}  // namespace trestle::nn
