#include "trestle/pipeline/pipeline_impl.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/device/threads.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/detail/autocast_scope.h"
#include "trestle/nn/training_mode_scope.h"
#include "trestle/pipeline/execute/autograd_bridge.h"
#include "trestle/pipeline/execute/clip_over_ranks.h"
#include "trestle/pipeline/execute/micro_batch.h"
#include "trestle/pipeline/execute/normal_mode_guard.h"
#include "trestle/pipeline/execute/rank_inputs.h"
#include "trestle/pipeline/execute/rank_timeline.h"
#include "trestle/pipeline/execute/replicas.h"
#include "trestle/pipeline/execute/tie_actions.h"
#include "trestle/pipeline/options.h"
#include "trestle/pipeline/profile/profile.h"
#include "trestle/pipeline/profile/profile_layers.h"
#include "trestle/pipeline/rank_agreement.h"
#include "trestle/pipeline/step_checks.h"
#include "trestle/pipeline/transport/distributed_transport.h"
#include "trestle/pipeline/transport/local_transport.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/fit.h"
#include "trestle/precision/gradient_scaler.h"

namespace trestle {

using pipeline::NormalModeGuard;
using pipeline::PartitionedModel;
using pipeline::Phase;
using pipeline::StepInputs;
using pipeline::StepPlan;

namespace {

at::Tensor without_graph(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return tensor.is_inference() ? tensor.clone() : tensor.detach();
}

// [input] another input that shares its memory, if one does: no layer may write to either.
std::vector<std::optional<nn::SharedWith>> shared_inputs(const nn::Values& inputs) {
  std::vector<std::optional<nn::SharedWith>> shared(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      if (i != j && nn::may_share_memory(inputs[i], inputs[j]))
        shared[i] = nn::SharedWith{.value = {nn::model_input, static_cast<int>(j)}};
    }
  }
  return shared;
}

// The autocast of the calling thread, as a number that ranks can compare.
std::uint64_t callers_autocast() {
  const nn::AutocastState state = nn::AutocastState::current();
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < state.enabled.size(); ++i)
    number =
        number << 16U | (state.enabled[i] ? 1U + static_cast<std::uint64_t>(state.dtype[i]) : 0U);
  return number;
}

// Takes the target, the last value, out of each micro-batch. Sets the targets and each
// micro-batch's share of the loss. Returns the weight of the mini-batch.
double take_targets(std::vector<nn::Values>& micro_batches, const std::vector<std::int64_t>& sizes,
                    StepInputs& inputs) {
  std::vector<double> weights;
  for (std::size_t m = 0; m < micro_batches.size(); ++m) {
    const at::Tensor& target = inputs.targets.emplace_back(micro_batches[m].back());
    weights.push_back(target.defined() && !inputs.whole_batch_loss()
                          ? inputs.loss->weight(target)
                          : static_cast<double>(sizes[m]));
    if (!(weights.back() >= 0 && std::isfinite(weights.back())))
      throw UsageError(text("loss '", inputs.loss->name, "' has weight ", weights.back(),
                            " for micro-batch ", m, ": a weight is a finite number, at least 0"));
    micro_batches[m].pop_back();
  }
  double total = 0;
  for (const double weight : weights) total += weight;
  for (const double weight : weights) inputs.shares.push_back(total == 0 ? 0 : weight / total);
  return total;
}

// The norm and whether the weights changed. All ranks have the same norm, so all do the same.
void collect_update(pipeline::MiniBatchState& state, precision::GradientScaler* scaler,
                    StepResult& result) {
  result.gradient_norm = pipeline::norm_of_step(state.transport->norms(), state.inputs.end);
  result.stepped = std::isfinite(*result.gradient_norm);
  if (!scaler) return;
  scaler->unscale({});  // STEP has divided the gradients
  if (!result.stepped) scaler->note_overflow();
  scaler->update();
}

}  // namespace

Pipeline::Impl::Impl(const nn::Layers& layers, PipelineOptions given)
    : model(layers), options(std::move(given)), keys(options.numerics.seed), advisor(options) {
  if (options.devices.empty()) options.devices.assign(1, cpu_device());
  int count = 0;
  pipeline::check_on_all_ranks(options.group, [&] {
    if (over_ranks()) pipeline::check_group_size(options);
    count = static_cast<int>(model.graph().layers.size());
    pipeline::check_options(options, count);
    for (const auto& device : options.devices) {
      if (device.torch.is_privateuseone() && device.budget > 0)
        set_budget(device.torch, device.budget);
    }
  });
  if (!options.balance.empty()) {
    cut(options.balance);
  } else if (pipeline::stage_count(options) == 1 && !over_ranks()) {
    cut({count});
  } else if (!options.plan.sample.empty() || over_ranks()) {
    const precision::Autocast autocast(options.numerics.precision);
    measure_balance(prepare(options.plan.sample));
  }
}

PartitionedModel& Pipeline::Impl::cut_for(const nn::Values& inputs) {
  const std::lock_guard lock(mutex_);
  if (!parts_) measure_balance(inputs);
  const auto cut = std::accumulate(options.balance.begin(), options.balance.end(), std::size_t{0});
  if (cut != model.size())
    throw StateError(
        text("the pipeline was cut when its model had ", cut, " layers; now it has ", model.size()),
        {.hint = "Add all layers first, then make the pipeline."});
  for (const auto& stage : parts_->stages) stage.check_devices();
  parts_->ties.put_in_place();
  return *parts_;
}

PartitionedModel& Pipeline::Impl::partitioned() const {
  if (!parts_) {
    throw StateError(
        "the pipeline has not been cut yet: no balance was given and no mini-batch has been seen "
        "to measure one",
        {.hint = "Set 'balance' or 'plan.sample', or call step() or forward() first."});
  }
  return *parts_;
}

pipeline::ScheduleTables& Pipeline::Impl::tables() const {
  partitioned();
  return *tables_;
}

void Pipeline::Impl::cut(const std::vector<int>& balance) {
  options.balance = balance;
  options.devices = pipeline::devices_of_stages(options);
  const auto ranks = pipeline::ranks_of_stages(options);
  together([&] {  // each rank makes its own layers, so an error there is its own
    nn::Graph graph = model.graph();
    if (options.replicas.hooks) {
      pipeline::refuse_late_owners(graph, balance);
      options.replicas.hooks->wrap_layers(graph);
    }
    if (options.wrap_layers) options.wrap_layers(graph);
    parts_ = std::make_shared<PartitionedModel>(
        std::move(graph), balance, options.devices, ranks, options.cores.threads,
        options.numerics.memory_format, options.checkpoint_segments,
        over_ranks() ? std::optional(options.group.rank()) : std::nullopt,
        is_split()               ? pipeline::Replicated::OverTensorRanks
        : options.replicas.hooks ? pipeline::Replicated::Yes
                                 : pipeline::Replicated::No);
  });
  tables_ = std::make_unique<pipeline::ScheduleTables>(options, *parts_);
  // Finds mistakes in a user's table before the first step.
  const schedule::Schedule* table = nullptr;
  pipeline::check_on_all_ranks(options.group, [&] {
    table = &tables_->get({.micro_batches = options.micro_batches, .schedule = options.schedule});
  });
  if (over_ranks()) link_ = pipeline::connect_ranks(options, *parts_, *table);
}

// Times differ between ranks and replicas, and all need one cut: one rank measures.
void Pipeline::Impl::measure_balance(const nn::Values& batch) {
  std::vector<int> balance;
  const int first = pipeline::first_rank(options);
  pipeline::check_on_all_ranks(options.group, [&] {
    if (over_ranks() && options.group.rank() != first) return;
    const nn::Values micro_batch =
        pipeline::split(batch, options.micro_batches, options.plan.split_size)[0];
    const at::Device device = options.devices[0].torch;
    const auto alone = measured_alone();
    nn::Graph graph = model.graph();
    if (options.wrap_layers) options.wrap_layers(graph);
    const plan::LayerProfile profile = over_ranks()
                                           ? profile_layers_one_by_one(graph, micro_batch, device)
                                           : profile_layers(graph, micro_batch, device);
    balance = plan::balance_by_time(profile, pipeline::stage_count(options));
  });
  const auto& replicas = options.replicas.group;
  comm::with_purpose(
      [&] { return text("while rank ", first, " measured the layers of the pipeline"); },
      [&] {
        if (over_ranks()) balance = comm::broadcast_value(options.group, balance, first);
        if (replicas.valid()) balance = comm::broadcast_value(replicas, balance, 0);
        if (is_split()) balance = comm::broadcast_value(options.tensor.group, balance, 0);
      });
  cut(balance);
}

const std::shared_ptr<pipeline::StageOptimizers>& Pipeline::Impl::optimizers() {
  const std::lock_guard lock(mutex_);
  if (!options.optimizer.make)
    throw StateError(
        "this pipeline has no optimizers: PipelineOptions::optimizer was not given",
        {.hint = "Set it, or make an optimizer of parameters() and step it yourself."});
  if (!optimizers_)
    optimizers_ = std::make_shared<pipeline::StageOptimizers>(
        partitioned().stages, partitioned().named_parameters(), options.optimizer.make,
        options.replicas.hooks, sliced_parameters());
  return optimizers_;
}

gradient_norm::SlicedParameters Pipeline::Impl::sliced_parameters() const {
  gradient_norm::SlicedParameters sliced{.group = options.tensor.group};
  const nn::ParameterSlices slices = partitioned().parameter_slices();
  if (!is_split()) pipeline::refuse_unknown_slices(slices);
  for (const auto& [name, slice] : slices) sliced.names.insert(name);
  return sliced;
}

std::shared_ptr<void> Pipeline::Impl::measured_alone() const {
  return options.tensor.alone ? options.tensor.alone() : nullptr;
}

void Pipeline::Impl::set_mode(StepPlan::Mode mode) {
  mode_ = mode;
  if (mode == StepPlan::Mode::Training)
    model.train();
  else
    model.eval();
}

std::string Pipeline::Impl::suggest_fit() const {
  return parts_ ? advisor.suggest(*tables_, parts_->stages) : plan::suggest_fit({}, {});
}

// As the stages take it: without a graph, in the memory format of the options.
nn::Values Pipeline::Impl::prepare(const nn::Values& batch) const {
  nn::Values values;
  for (const auto& value : batch) values.push_back(without_graph(value));
  return pipeline::in_memory_format(std::move(values), options.numerics.memory_format);
}

void Pipeline::Impl::check_inputs(const nn::Values& inputs) const {
  const int wanted = parts_->graph.inputs;
  if (static_cast<int>(inputs.size()) != wanted) {
    throw UsageError(
        text("the model takes ", wanted, " input tensors, ", inputs.size(), " were given"));
  }
}

std::vector<std::int64_t> Pipeline::Impl::agree_on_sizes(StepPlan plan, const nn::Values& batch) {
  const bool is_first = !link_ || link_->is_first();
  if (link_ && is_first)
    pipeline::check_first_rank_inputs(parts_->graph, batch, options.group.rank());
  plan.samples = is_first ? pipeline::sample_count(batch) : pipeline::known_sample_count(batch);
  plan.step_number = keys.step_number();
  if (link_) {
    if (options.numerics.precision == Precision::Float32) plan.autocast = callers_autocast();
    plan.given = pipeline::input_bits(parts_->graph, batch);
    plan.mode = mode_;
    plan = link_->agree(plan);
    pipeline::check_stage_inputs(*parts_, batch, plan.given, options.group.rank(),
                                 pipeline::first_rank(options));
  }
  auto sizes =
      pipeline::micro_batch_sizes(plan.samples, options.micro_batches, options.plan.split_size);
  const auto& [replicas, hooks] = options.replicas;
  if (plan.call != StepPlan::Call::Step || !hooks || !hooks->needs_equal_micro_batches())
    return sizes;
  const int fewest = pipeline::fewest_micro_batches(replicas, static_cast<int>(sizes.size()));
  if (fewest == static_cast<int>(sizes.size())) return sizes;
  return pipeline::micro_batch_sizes(plan.samples, fewest, 0);
}

std::unique_ptr<pipeline::StageTransport> Pipeline::Impl::transport(
    const schedule::Schedule& table) const {
  if (link_)
    return std::make_unique<pipeline::DistributedTransport>(
        link_, table, pipeline::message_routes(parts_->cut), options.deadline, parts_->copies);
  // A stage that waits for its replicas in other processes keeps its neighbours waiting: the
  // stage's own error, which names the other process, must come first.
  constexpr std::chrono::seconds after_replicas{5};
  const auto deadline =
      options.deadline + (options.replicas.group.valid() ? after_replicas : after_replicas * 0);
  return std::make_unique<pipeline::LocalTransport>(pipeline::message_routes(parts_->cut),
                                                    table.rank_of_stage, table.rank_count(),
                                                    table.micro_batches, deadline, parts_->copies);
}

pipeline::StageExchange Pipeline::Impl::stage_exchange(std::size_t micro_batches) {
  if (!link_) return {};
  const auto& table = tables_->get(
      {.micro_batches = static_cast<int>(micro_batches), .schedule = options.schedule});
  return {
      {parts_->cut.routes, parts_->cut.route_values, table.rank_of_stage}, link_, transport(table)};
}

std::shared_ptr<pipeline::MiniBatchState> Pipeline::Impl::run(StepInputs inputs,
                                                              const nn::Values& batch,
                                                              Phase phase) {
  inputs.shared = shared_inputs(batch);
  inputs.batch_norm = options.numerics.batch_norm;
  inputs.hooks = options.replicas.hooks;
  inputs.ties = &parts_->ties;
  inputs.log = options.tensor.log;
  if (parts_->one_device_each) inputs.threads = parts_->executor.threads();
  if (inputs.wants_gradient.empty()) inputs.wants_gradient.resize(batch.size(), false);
  // A caller's backward may run after the pipeline is destroyed.
  inputs.suggest = [weak = weak_from_this(), evaluating = inputs.evaluating](int) {
    if (evaluating) return std::string(plan::evaluation_advice);
    const auto impl = weak.lock();
    return impl ? impl->suggest_fit() : std::string();
  };
  auto messages = transport(inputs.table);
  auto state = std::make_shared<pipeline::MiniBatchState>(
      std::move(inputs), parts_->stages, parts_->cut, parts_->loss_boundary, parts_->copies,
      parts_->clock, std::move(messages));
  try {
    parts_->executor.run(*state, phase);
  } catch (...) {
    if (const auto& hooks = options.replicas.hooks) {
      for (const auto& stage : parts_->stages) hooks->abandon(stage.index());
      gradients_dropped_ = true;
    }
    throw;
  }
  parts_->remember(*state);
  return state;
}

// Reshards the parameters afterwards: in a step's table that comes after the backwards.
std::shared_ptr<pipeline::MiniBatchState> Pipeline::Impl::run_forwards(StepInputs inputs,
                                                                       const nn::Values& batch) {
  auto state = run(std::move(inputs), batch, Phase::Forward);
  const auto& hooks = options.replicas.hooks;
  if (!hooks) return state;
  for (const auto& stage : parts_->stages) hooks->reshard(stage.index());
  return state;
}

// With an optimizer in the pipeline, no caller clears gradients: the next step would add to those
// that a failed step leaves.
std::shared_ptr<pipeline::MiniBatchState> Pipeline::Impl::run_step(PreparedStep& prepared) {
  gradients_dropped_ = false;
  try {
    return run(std::move(prepared.inputs), prepared.batch, Phase::Both);
  } catch (...) {
    if (options.optimizer.make) {
      drop_gradients();
      gradients_dropped_ = true;
    }
    throw;
  }
}

void Pipeline::Impl::drop_gradients() {
  for (const auto& stage : parts_->stages)
    for (const auto& parameter : stage.parameters()) parameter.mutable_grad() = at::Tensor();
  if (optimizers_) optimizers_->clear_gradients();
}

StepResult Pipeline::Impl::step(const nn::Values& given, const at::Tensor& target,
                                const nn::Loss& loss, const StepOptions& step_options) {
  const NormalModeGuard normal_mode;
  const precision::Autocast autocast(options.numerics.precision);
  pipeline::check_step(target, step_options, options, keys.step_number());
  if (gradients_dropped_ && step_options.first_micro_batch > 0)
    throw StateError(text("first_micro_batch = ", step_options.first_micro_batch,
                          " continues a step that failed, and whose gradients were dropped"),
                     {.hint = "Repeat the mini-batch from its start, with first_micro_batch = 0."});
  PreparedStep prepared = prepare_step(given, target, loss, step_options);
  const auto state = run_step(prepared);
  {
    const nn::AutocastScope no_autocast(nn::AutocastState::off());
    pipeline::pass_on_input_gradients(given, *state, 1 / prepared.loss_scale);
  }
  StepResult result = std::move(prepared.result);
  if (step_options.output == StepOptions::Output::Keep && parts_->stages.has_last())
    result.output = pipeline::merge_one(state->last().outputs, 0);
  collect_loss(*state, result);
  if (state->inputs.optimizers) collect_update(*state, step_options.scaler, result);
  return result;
}

Pipeline::Impl::PreparedStep Pipeline::Impl::prepare_step(const nn::Values& given,
                                                          const at::Tensor& given_target,
                                                          const nn::Loss& loss,
                                                          const StepOptions& step_options) {
  const bool updates = options.optimizer.make && step_options.update == StepOptions::Update::Now;
  PreparedStep result;
  const double loss_scale = result.loss_scale =
      step_options.scaler ? step_options.scaler->scale() : 1;
  result.batch = prepare(given);
  cut_for(result.batch);
  check_inputs(result.batch);
  nn::Values with_target = result.batch;
  with_target.push_back(without_graph(given_target));
  const double gradient_scale = step_options.gradient_scale * loss_scale;
  const auto sizes = agree_on_sizes({.call = StepPlan::Call::Step,
                                     .first_micro_batch = step_options.first_micro_batch,
                                     .gradient_scale = gradient_scale,
                                     .loss = std::hash<std::string>()(loss.name),
                                     .updates = updates},
                                    with_target);
  auto micro_batches = pipeline::split_as(with_target, sizes);
  const auto& table = tables_->get({.micro_batches = static_cast<int>(micro_batches.size()),
                                    .schedule = options.schedule,
                                    .updates = updates});
  pipeline::check_loss(loss, table);

  StepInputs& inputs = result.inputs;
  inputs.table = table;
  inputs.loss = &loss;
  if (inputs.whole_batch_loss() || step_options.output == StepOptions::Output::Keep)
    inputs.kept_outputs = 1;
  result.result.weight = take_targets(micro_batches, sizes, inputs);
  inputs.whole_target = with_target.back();
  inputs.batch = std::move(micro_batches);
  inputs.wants_gradient = pipeline::need_gradients(given);
  inputs.key = keys.next_step(step_options.first_micro_batch);
  inputs.gradient_scale = gradient_scale;
  inputs.replicas = options.replicas.group;
  if (updates) inputs.optimizers = optimizers();
  inputs.end = {.max_norm = options.optimizer.clip_grad_norm,
                .p = options.optimizer.clip_p,
                .loss_scale = loss_scale,
                .keep_nonfinite = step_options.nonfinite == StepOptions::NonfiniteGradients::Keep};
  const auto share = pipeline::share_of_replica(inputs.replicas, sizes, result.result.weight);
  keys.set_examples(share.examples, share.first_example);
  inputs.key.micro_batch += share.first_micro_batch;
  inputs.key.example += share.first_example;
  inputs.sizes = sizes;
  if (!inputs.whole_batch_loss()) inputs.gradient_scale *= share.of_weight;
  result.result.micro_batches = share.micro_batches;
  return result;
}

// The loss of all micro-batches, replicas and ranks.
void Pipeline::Impl::collect_loss(const pipeline::MiniBatchState& state, StepResult& result) {
  const auto kind = state.inputs.loss->kind;
  pipeline::WeightedLoss sum{.weight = result.weight};
  for (int m = 0; m < state.micro_batches(); ++m) {
    const at::Tensor& loss = state.stage_states.back().losses[m];  // None on most ranks
    if (loss.defined())
      sum.loss +=
          loss.item<double>() * (kind == nn::Loss::Kind::WholeBatch ? 1 : state.inputs.shares[m]);
  }
  if (parts_->stages.has_last())
    sum = pipeline::mean_over_replicas(options.replicas.group, kind, sum);
  if (link_) {
    const auto outcome = link_->share({.loss = sum.loss, .weight = sum.weight});
    sum = {.loss = outcome.loss, .weight = outcome.weight};
  }
  result.loss = sum.loss;
  result.weight = sum.weight;
}

nn::Values Pipeline::Impl::forward(const nn::Values& given) {
  const NormalModeGuard normal_mode;
  const precision::Autocast autocast(options.numerics.precision);
  const nn::Values batch = prepare(given);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  const bool graph = at::GradMode::is_enabled();
  if (graph && options.replicas.hooks)
    throw UsageError(
        "Pipeline::forward() with gradients on a pipeline that is one of several replicas",
        {.hint =
             "Use step(), which weighs the replicas' shares of the mini-batch, or evaluate()."});
  auto sizes = agree_on_sizes(
      {.call = graph ? StepPlan::Call::Forward : StepPlan::Call::ForwardWithoutGraph}, batch);
  auto micro_batches = pipeline::split_as(batch, sizes);
  StepInputs inputs{.table = tables_->get({.micro_batches = static_cast<int>(micro_batches.size()),
                                           .schedule = "gpipe",
                                           .recompute = graph}),
                    .key = keys.next_step(),
                    .sizes = std::move(sizes),
                    .batch = std::move(micro_batches),
                    .evaluating = !graph,
                    .kept_outputs = parts.graph.outputs};
  if (graph) inputs.wants_gradient = pipeline::need_gradients(given);
  if (link_ && graph)
    inputs.begin_backward = [link = link_, serial = link_->serial()] {
      link->agree_on_backward(serial);
    };
  const auto state = run_forwards(std::move(inputs), batch);
  if (parts.stages.has_last())
    return graph ? pipeline::attach_backward(given, state, parts_)
                 : pipeline::merge(state->last().outputs);
  callers_backward_.clear();
  if (graph) {
    callers_backward_.expect(given, state);
    link_->group().report_status("returned from forward(), its backward() is to come");
  }
  return nn::Values(parts.graph.outputs);
}

void Pipeline::Impl::backward(const at::Tensor& loss) {
  if (loss.defined()) return pipeline::CallersBackward::run_from_loss(loss, link_.get());
  if (!link_ || link_->is_last())
    throw UsageError("Pipeline::backward() without a loss where the model's output is",
                     {.hint = "Compute the loss from what forward() returned, and pass it."});
  callers_backward_.run_stages(*parts_);
}

nn::Values Pipeline::Impl::evaluate(const nn::Values& given) {
  const NormalModeGuard normal_mode;
  const precision::Autocast autocast(options.numerics.precision);
  const at::NoGradGuard no_grad;
  const nn::Values batch = prepare(given);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  const nn::TrainingModeScope mode(parts.layers(), nn::TrainingModeScope::Mode::Evaluate);
  auto sizes = agree_on_sizes({.call = StepPlan::Call::Evaluate}, batch);
  auto micro_batches = pipeline::split_as(batch, sizes);
  StepInputs inputs{.table = tables_->get({.micro_batches = static_cast<int>(micro_batches.size()),
                                           .schedule = "gpipe",
                                           .recompute = false}),
                    .key = keys.next_evaluation(),
                    .sizes = std::move(sizes),
                    .batch = std::move(micro_batches),
                    .evaluating = true,
                    .kept_outputs = parts.graph.outputs};
  const auto state = run_forwards(std::move(inputs), batch);
  if (!parts.stages.has_last()) return nn::Values(parts.graph.outputs);
  return pipeline::merge(state->last().outputs);
}

simulate::Costs Pipeline::Impl::profile(const nn::Values& given, const at::Tensor& target,
                                        const nn::Loss& loss) {
  const NormalModeGuard normal_mode;
  const precision::Autocast autocast(options.numerics.precision);
  nn::Values batch = prepare(given);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  batch.push_back(without_graph(target));
  const auto sizes = agree_on_sizes(
      {.call = StepPlan::Call::Profile, .loss = std::hash<std::string>()(loss.name)}, batch);
  auto exchange = stage_exchange(sizes.size());
  simulate::Costs costs;
  exchange.run([&] {
    if (over_ranks()) advisor.gather_budgets(options.group, parts.stages);
    const auto alone = measured_alone();
    costs = pipeline::profile_stages(
        parts, {pipeline::split_as(batch, sizes), sizes, tables_->splits_backward()}, loss,
        exchange, options.optimizer, tables_->lends_cores() ? core_count() : 0,
        options.tensor.log.get());
  });
  if (options.replicas.hooks && !options.replicas.hooks->can_split_backward())
    pipeline::put_backwards_into_input_grads(costs);
  advisor.set_costs(costs);
  advisor.set_profiled_samples(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
  return costs;
}

double Pipeline::Impl::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& norm) {
  const auto* parts = together([&] { return &partitioned(); });
  const NamedTensors named = parts->named_parameters();
  if (over_ranks())
    return pipeline::clip_grad_norm(options.group, {parts->stages, named, sliced_parameters()},
                                    max_norm, norm);
  optim::check_clipping(max_norm, norm);
  const double all = gradient_norm::norm_over_slices(named, sliced_parameters(), {}, norm.p);
  return optim::clip_by(without_names(named), {{.value = all, .dtype = at::kDouble}}, max_norm,
                        norm);
}

double Pipeline::Impl::grad_norm(double p) {
  const auto* parts = together([&] { return &partitioned(); });
  const NamedTensors named = parts->named_parameters();
  if (over_ranks())
    return pipeline::grad_norm(options.group, {parts->stages, named, sliced_parameters()}, p);
  return gradient_norm::norm_over_slices(named, sliced_parameters(), {}, p);
}

schedule::Timeline Pipeline::Impl::gather_timeline() const {
  const auto [own, begin] = partitioned().timeline_and_begin();
  return pipeline::gather_timeline(options.group, own, begin,
                                   [this] { return parts_->clock.now(); });
}

}  // namespace trestle
