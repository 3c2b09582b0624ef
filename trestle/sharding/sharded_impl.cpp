#include "trestle/sharding/sharded_impl.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/comm/shared_devices.h"
#include "trestle/device/batch_norm_kernel.h"
#include "trestle/device/keyed_random.h"
#include "trestle/device/weight_kernel.h"
#include "trestle/nn/parameter_slice.h"
#include "trestle/sharding/engine/layer_units.h"
#include "trestle/sharding/options/option_checks.h"
#include "trestle/sharding/options/reproducible.h"
#include "trestle/sync_batch_norm/sync_batch_norm.h"

namespace trestle {
namespace {

using sharding::GradientReducer;
using sharding::JoinProtocol;
using sharding::ShardEngine;
using Step = JoinProtocol::Step;

bool runs_in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

template <class Items>
NamedTensors to_named_tensors(const Items& items) {
  NamedTensors tensors;
  for (const auto& item : items) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

std::shared_ptr<ShardEngine> make_engine(const DeviceMesh& mesh, const ShardOptions& options) {
  return std::make_shared<ShardEngine>(options, sharding::rank_groups(mesh, options));
}

// Ranks that are threads share the devices of their process.
void refuse_shared_devices(const DeviceMesh& mesh, const comm::Group& ranks,
                           const NamedTensors& parameters) {
  if (mesh.world().backend() != "threads") return;
  std::vector<at::Device> devices;
  for (const auto& [name, parameter] : parameters) devices.push_back(parameter.device());
  comm::refuse_shared_devices(ranks, devices, "that share each batch");
}

void require_trained(const NamedTensors& parameters) {
  if (std::none_of(parameters.begin(), parameters.end(),
                   [](const auto& named) { return named.second.requires_grad(); }))
    throw UsageError("the model has no parameter that is trained",
                     {.hint = "There are no gradients to reduce over ranks."});
}

bool contains_sync_batch_norm(const torch::nn::Module& module) {
  for (const auto& child : module.modules())
    if (dynamic_cast<const sync_batch_norm::SyncBatchNormImpl*>(child.get()) != nullptr)
      return true;
  return false;
}

}  // namespace

// Lives during a forward of a module.
struct Sharded::Impl::ForwardScope {
  std::shared_ptr<sharding::ParameterUnsharder::Call> call;
  std::unique_ptr<KeyedRandom> random;
  std::unique_ptr<nn::LayerRun> layer_run;
  sharding::ShardRecorder::Entry entry;
};

Sharded::Impl::Impl(std::shared_ptr<ShardEngine> engine)
    : engine_(std::move(engine)),
      keys_(engine_->options(), engine_->ranks().all),
      joined_(engine_->stepped()) {}

Sharded::Impl::Impl(const nn::Layers& model, const DeviceMesh& mesh, const ShardOptions& options)
    : Impl(make_engine(mesh, options)) {
  graph_ = model.graph();
  std::vector<std::size_t> unit_order;
  if (options.level == ShardLevel::Parameters) {
    const auto units =
        sharding::make_layer_units({.graph = graph_, .last = graph_.layers.size()}, *engine_);
    sharding::gather_around_layers(graph_, units, *engine_);
    unit_order = sharding::order_of(units);
  } else {
    for (const auto& layer : graph_.layers) {
      if (options.device) layer.to(*options.device);
      if (layer.module) engine_->precision().add_module(*layer.module.make(), layer.name);
    }
  }
  const NamedTensors parameters = sharding::each_once(model.named_parameters());
  if (!graph_.layers.empty()) require_trained(parameters);
  refuse_shared_devices(mesh, engine_->ranks().all, parameters);
  engine_->finish(parameters, sharding::each_once(model.named_buffers()),
                  GradientReducer::Driver::Autograd, unit_order);
  engine_->precision().cast_inputs_of_layers(graph_);
  if (options.wrap_layers) options.wrap_layers(graph_);
  if (options.checkpoint_segments > 0) {
    const int last = static_cast<int>(graph_.layers.size());
    const std::shared_ptr<const nn::Graph> unowned(std::shared_ptr<void>(), &graph_);
    segments_.emplace(unowned,
                      nn::cut_evenly({.first = 0, .last = last}, options.checkpoint_segments));
  }
}

Sharded::Impl::Impl(std::shared_ptr<torch::nn::Module> model, const DeviceMesh& mesh,
                    const ShardOptions& options)
    : Impl(make_engine(mesh, options)) {
  sharding::need_no_layers(options, "Sharded of a torch module");
  module_ = std::move(model);
  if (!module_) throw UsageError("Sharded of a null module");
  if (options.device) module_->to(*options.device);
  const NamedTensors parameters =
      sharding::each_once(to_named_tensors(module_->named_parameters()));
  const NamedTensors buffers = sharding::each_once(to_named_tensors(module_->named_buffers()));
  engine_->precision().add_module(*module_, "");
  if (options.level == ShardLevel::Parameters)
    module_units_.emplace(*module_, parameters, buffers, *engine_);
  require_trained(parameters);
  refuse_shared_devices(mesh, engine_->ranks().all, parameters);
  const bool one_unit = module_units_ && !module_units_->has_hooked_modules();
  engine_->finish(parameters, buffers, GradientReducer::Driver::Autograd,
                  one_unit ? std::vector<std::size_t>{0} : std::vector<std::size_t>());
  if (module_units_) module_units_->attach_hooks();
}

at::Tensor Sharded::Impl::prepare_input(const at::Tensor& input) const {
  return engine_->precision().cast_input(
      options().reproducible.micro_batches > 0 ? sharding::aligned(input) : input);
}

void Sharded::Impl::before_forward() {
  if (runs_in_backward()) return;
  if (reducer().in_pass()) reducer().abort_pass();
  if (at::GradMode::is_enabled()) sharding::check_threads(options().reproducible);
  engine_->check_unchanged();
  joined_.announce_forward();
  engine_->prepare_forward(joined_.buffers_from());
}

nn::Values Sharded::Impl::forward(nn::Values inputs) {
  if (module_)
    throw UsageError("forward() of tensors is for nn::Layers",
                     {.hint = "Call a module through ShardedModule::forward() or Sharded::run()."});
  before_forward();
  for (at::Tensor& input : inputs) input = prepare_input(input);
  auto entry = engine_->recorder().begin(ShardEvent::What::Forward, -1);
  const nn::RunKey key = keys_.next(reducer(), inputs);
  nn::Values outputs =
      segments_ ? segments_->run_model(inputs, &key) : nn::run(graph_, inputs, key);
  entry.end();
  if (engine_->unsharder()) engine_->unsharder()->end_model();
  for (at::Tensor& output : outputs) watch_output(output);
  return outputs;
}

void Sharded::Impl::watch_output(at::Tensor& output) const {
  if (!output.defined()) return;
  output = engine_->precision().cast_output(output);
  if (!output.requires_grad() || output.is_leaf() || !at::GradMode::is_enabled()) return;
  output.register_hook([weak = std::weak_ptr(engine_->reducer_pointer())](const at::Tensor&) {
    if (const auto self = weak.lock()) self->prepare_for_backward();
  });
}

std::shared_ptr<void> Sharded::Impl::begin(const std::function<void(const Change&)>& inputs) {
  if (!module_)
    throw UsageError("run() is for a torch::nn::Module",
                     {.hint = "Call nn::Layers through forward()."});
  before_forward();
  auto scope = std::make_shared<ForwardScope>();
  scope->entry = engine_->recorder().begin(ShardEvent::What::Forward, -1);
  std::vector<at::Tensor> given;
  inputs([&](at::Tensor& input) {
    input = prepare_input(input);
    given.push_back(input);
  });
  const nn::RunKey key = keys_.next(reducer(), given);
  const NamedTensors& parameters = engine_->parameters();
  const at::Device device =
      parameters.empty() ? at::Device(at::kCPU) : parameters[0].second.device();
  scope->random =
      std::make_unique<KeyedRandom>(device, keyed_seed(key.seed, key.step, 0, key.micro_batch));
  scope->layer_run = std::make_unique<nn::LayerRun>(key, 0);
  if (engine_->unsharder()) scope->call = engine_->unsharder()->begin(0, given);
  std::size_t next = 0;
  inputs([&](at::Tensor& input) { input = given[next++]; });
  return scope;
}

void Sharded::Impl::end(const std::shared_ptr<void>& scope,
                        const std::function<void(const Change&)>& outputs) {
  auto* const forward = static_cast<ForwardScope*>(scope.get());
  forward->layer_run.reset();
  forward->random.reset();
  forward->entry.end();
  std::vector<at::Tensor> made;
  outputs([&](at::Tensor& output) { made.push_back(output); });
  const auto& unsharder = engine_->unsharder();
  if (unsharder && made.empty() && at::GradMode::is_enabled()) {
    throw UsageError("the model's forward returns no tensor that Sharded can find",
                     {.hint = "At level Parameters return tensors, or tuples, pairs, vectors, maps "
                              "and optionals of them: hooks on them follow the backward."});
  }
  if (forward->call) unsharder->end(forward->call, made);
  if (unsharder) unsharder->end_model();
  std::size_t next = 0;
  outputs([&](at::Tensor& output) {
    output = made[next++];
    watch_output(output);
  });
}

void Sharded::Impl::hold_sync(int change) {
  if (options().reproducible.micro_batches > 0)
    throw UsageError(
        "no_sync() with ShardOptions::reproducible",
        {.hint = "A step has one backward for each of own_micro_batches(). The last one "
                 "reduces."});
  no_syncs_ += change;
  reducer().set_sync(no_syncs_ == 0);
}

void Sharded::Impl::check_weight(double weight) const {
  if (!(weight >= 0 && std::isfinite(weight)))
    throw UsageError(text("backward() with weight ", weight),
                     {.hint = "The weight is a number of samples."});
  if (options().reproducible.micro_batches > 0)
    throw UsageError("backward() with a weight and ShardOptions::reproducible",
                     {.hint = "Leave the weight out: all micro-batches have the same size."});
  if (!engine().reducer().sync())
    throw UsageError("backward() with a weight inside no_sync(), where nothing is averaged",
                     {.hint = "Scale the loss inside no_sync(). Give the backward outside the "
                              "weight of all of them together."});
}

void Sharded::Impl::backward(const at::Tensor& loss, std::optional<double> weight) {
  if (weight) check_weight(*weight);
  if (reducer().in_pass()) reducer().abort_pass();
  const std::int64_t before = reducer().stats().backwards;
  reducer().set_weight(weight ? weight : joined_.default_weight());
  joined_.compare_gradients();
  at::Tensor root = loss;
  if (weight && loss.requires_grad()) {
    root = loss * 1;
    root.register_hook([weak = std::weak_ptr(engine_->reducer_pointer())](const at::Tensor& grad) {
      const auto self = weak.lock();
      return self ? self->apply_weight(grad) : grad;
    });
  }
  try {
    root.backward();
  } catch (...) {
    reducer().set_weight(joined_.default_weight());
    reducer().abort_pass();
    throw;
  }
  // The loss depends on no trained parameter here. On other ranks it may.
  if (reducer().stats().backwards == before) reducer().pass_without_gradients();
  reducer().set_weight(joined_.default_weight());
}

bool Sharded::Impl::has_sync_batch_norms() const {
  if (all_ranks().size() == 1) return false;
  bool found = module_ && contains_sync_batch_norm(*module_);
  for (const auto& layer : graph_.layers)
    found = found || (layer.module && contains_sync_batch_norm(*layer.module.make()));
  for (const auto& [name, buffer] : engine().buffers())
    found = found || device::has_batch_norm_kernel(buffer);
  return found;
}

void Sharded::Impl::backward_without_samples() {
  if (options().reproducible.micro_batches > 0)
    throw UsageError("backward_without_samples() with ShardOptions::reproducible",
                     {.hint = "All micro-batches have the same size: each rank has samples."});
  if (has_sync_batch_norms())
    throw UsageError(
        "backward_without_samples() with batch norms over all ranks' samples (SyncBatchNorm), "
        "which would wait for this rank",
        {.hint = "Call forward() with an empty batch, and backward() with a sum over it."});
  const at::AutoGradMode with_grad(true);
  before_forward();
  reducer().set_weight(0);
  const auto& unsharder = engine_->unsharder();
  if (unsharder) unsharder->shadow_forward();
  reducer().pass_without_samples([&unsharder] {
    if (unsharder) unsharder->shadow_backward();
  });
  reducer().set_weight(joined_.default_weight());
}

void Sharded::Impl::refuse_slices(const char* call) {
  if (!has_slices_ && module_) {
    const auto parts = module_->modules();
    const auto parameters = module_->parameters();
    has_slices_ = std::any_of(parts.begin(), parts.end(),
                              [](const auto& part) {
                                return dynamic_cast<nn::SlicedParameters*>(part.get()) != nullptr;
                              }) ||
                  std::any_of(parameters.begin(), parameters.end(), device::is_slice);
  }
  if (!has_slices_) has_slices_ = !nn::slices_of(graph_).empty();
  if (!*has_slices_) return;
  throw UsageError(text(call,
                        " would take the norm of this rank's slices alone: tensor ranks hold "
                        "the rest of the model's parameters"),
                   {.hint = "Make the model with trestle::parallelize() on a mesh with a dimension "
                            "'tensor'; its clip_grad_norm() and optimizers count each element "
                            "once."});
}

double Sharded::Impl::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& clip) {
  refuse_slices("clip_grad_norm()");
  const double norm = engine_->clip_grad_norm(max_norm, clip);
  joined_.note_gradients();
  return norm;
}

std::string Sharded::Impl::description() const {
  std::string words = engine_->description();
  if (!module_units_) return words + "\n";
  if (!module_units_->has_hooked_modules())
    return words +
           " (no module in it is a trestle::Hooked: all parameters are gathered while it "
           "runs)\n";
  constexpr std::size_t most = 12;
  const auto& units = engine_->units();
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(units.size(), most); ++i) names.push_back(units[i].name);
  if (units.size() > most) names.push_back(text(units.size() - most, " more"));
  return text(words, " (", trestle::join(names, ", "), ")\n");
}

// Inside join().

void Sharded::Impl::check_can_join() const {
  if (joined_.is_active())
    throw StateError("join() inside join()", {.hint = "Give one join() all models."});
  if (options().reproducible.micro_batches > 0)
    throw UsageError("join() with ShardOptions::reproducible, whose micro-batches are on all ranks",
                     {.hint = "Leave one of them out."});
  if (no_syncs_ > 0) throw StateError("join() inside no_sync()");
  if (has_sync_batch_norms())
    throw UsageError(
        "join() with batch norms over all ranks' samples (SyncBatchNorm), which a rank without "
        "batches does not run",
        {.hint =
             "Give such ranks empty batches, or use batch norms over each rank's own samples."});
}

void Sharded::Impl::check_outside_of_join(const char* call) const {
  if (joined_.is_active())
    throw UsageError(text(call, " inside join(), where ranks without batches do not call it"),
                     {.hint = "Call it after join(), on all ranks."});
}

std::size_t Sharded::Impl::join_plan() const {
  std::string words;
  for (const auto& [name, tensor] : engine().parameters())
    words += text(name, tensor.requires_grad(), " ");
  return std::hash<std::string>()(words);
}

void Sharded::Impl::begin_join(const std::shared_ptr<JoinProtocol>& protocol, int number) {
  joined_.begin(protocol, number);
  reducer().set_after_pass([this] { joined_.note_gradients(); });
  reducer().set_weight(joined_.default_weight());
  reducer().set_announcer([this](const GradientReducer::Announcement& announcement) {
    joined_.announce_backward(announcement);
  });
}

void Sharded::Impl::end_join() {
  joined_.end();
  reducer().set_weight({});
  reducer().set_announcer({});
  reducer().set_after_pass({});
}

// Takes part, on a rank without batches, in an operation of the active ranks.
void Sharded::Impl::shadow(const JoinProtocol::Message& message) {
  const at::AutoGradMode mode(message.step != Step::Forward);
  joined_.update_buffers_from();
  const auto& unsharder = engine_->unsharder();
  if (message.step == Step::Forward || message.step == Step::TrainingForward) {
    before_forward();
    keys_.next(reducer(), {});
    if (unsharder) unsharder->shadow_forward();
    return;
  }
  joined_.shadow_gradients(message);
  const bool reduces = message.step == Step::Backward;
  if (!reduces) hold_sync(1);
  reducer().set_weight(message.weighted ? std::optional<double>(0) : std::nullopt);
  reducer().pass_without_samples([&unsharder] {
    if (unsharder) unsharder->shadow_backward();
  });
  reducer().set_weight(joined_.default_weight());
  if (!reduces) hold_sync(-1);
}

void Sharded::Impl::broadcast_last_buffers() {
  if (options().broadcast.buffers) engine_->broadcast_buffers(joined_.first_active_rank());
}

}  // namespace trestle
