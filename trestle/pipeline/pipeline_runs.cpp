// What a pipeline runs: steps, forwards, evaluations, profiles.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/nn/detail/autocast_scope.h"
#include "trestle/nn/training_mode_scope.h"
#include "trestle/pipeline/autograd_bridge.h"
#include "trestle/pipeline/distributed_transport.h"
#include "trestle/pipeline/local_transport.h"
#include "trestle/pipeline/micro_batch.h"
#include "trestle/pipeline/outside_inference_mode.h"
#include "trestle/pipeline/pipeline_impl.h"
#include "trestle/pipeline/profile.h"
#include "trestle/pipeline/replicas.h"
#include "trestle/pipeline/step_checks.h"
#include "trestle/precision/gradient_scaler.h"

namespace trestle {

using pipeline::OutsideInferenceMode;
using pipeline::Part;
using pipeline::PartitionedModel;
using pipeline::StepInputs;
using pipeline::StepPlan;
using pipeline::StepState;

namespace {

at::Tensor plain(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return tensor.is_inference() ? tensor.clone() : tensor.detach();
}

// Do two of the model's inputs share memory? Then no layer may write to either.
std::vector<std::optional<nn::SharedWith>> shared_inputs(const nn::Values& inputs) {
  std::vector<std::optional<nn::SharedWith>> shared(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      if (i != j && nn::may_share_memory(inputs[i], inputs[j]))
        shared[i] = {{nn::model_input, static_cast<int>(j)}};
    }
  }
  return shared;
}

// Equal on two ranks where their callers' threads have the same autocast.
std::uint64_t callers_autocast() {
  const nn::AutocastState state = nn::AutocastState::current();
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < state.enabled.size(); ++i)
    number =
        number << 16U | (state.enabled[i] ? 1U + static_cast<std::uint64_t>(state.dtype[i]) : 0U);
  return number;
}

// Where only forwards ran: a step's table has it behind the backwards.
void let_parameters_go(const PipelineOptions& options, const pipeline::StageList& stages) {
  if (!options.hooks) return;
  for (const auto& stage : stages) options.hooks->reshard(stage.index());
}

// What all ranks made of the norm that all have.
void note_update(StepState& state, precision::GradientScaler* scaler, StepResult& result) {
  result.gradient_norm = pipeline::norm_of_step(state.transport->norms(), state.inputs.end);
  result.stepped = std::isfinite(*result.gradient_norm);
  if (!scaler) return;
  scaler->unscale({});  // STEP has done it
  if (!result.stepped) scaler->note_overflow();
  scaler->update();
}

std::vector<nn::Values> without_last(std::vector<nn::Values> pieces) {
  for (auto& piece : pieces) piece.pop_back();
  return pieces;
}

}  // namespace

// As the stages take it: without history, and in the memory format that was asked for.
nn::Values Pipeline::Impl::prepared(const nn::Values& batch) const {
  nn::Values values;
  for (const auto& value : batch) values.push_back(plain(value));
  return pipeline::in_memory_format(std::move(values), options.memory_format);
}

// Over ranks the first one knows how many samples there are.
std::vector<std::int64_t> Pipeline::Impl::piece_sizes(StepPlan plan, const nn::Values& batch) {
  if (link_ && link_->is_first()) check_first_input(batch);
  if (!link_ || link_->is_first()) {
    plan.samples = pipeline::sample_count(batch);
  } else {
    plan.samples = pipeline::known_sample_count(batch);
  }
  plan.step_number = step_number();
  if (link_) {
    if (options.precision == Precision::Float32) plan.autocast = callers_autocast();
    plan.given = given_inputs(batch);
    plan.mode = mode_;
    plan = link_->agree(plan);
    check_given(batch, plan.given);
  }
  return pipeline::piece_sizes(plan.samples, options.micro_batches, options.split_size);
}

std::unique_ptr<pipeline::Transport> Pipeline::Impl::transport(
    const schedule::Schedule& table) const {
  if (link_)
    return std::make_unique<pipeline::DistributedTransport>(link_, table, parts_->cut.routes,
                                                            options.deadline, parts_->copies);
  return std::make_unique<pipeline::LocalTransport>(parts_->cut.routes, table.rank_of_stage,
                                                    table.rank_count(), table.micro_batches,
                                                    options.deadline, parts_->copies);
}

std::unique_ptr<pipeline::Relay> Pipeline::Impl::make_relay(std::size_t micro_batches) {
  if (!link_) return std::make_unique<pipeline::Relay>(parts_->cut, parts_->stages);
  const auto& table = lowered(static_cast<int>(micro_batches), options.schedule, true);
  return std::make_unique<pipeline::Relay>(parts_->cut, parts_->stages, table.rank_of_stage, link_,
                                           transport(table));
}

// A pipeline inside a layer of another one follows that one's key, so that running the layer again
// draws the same numbers; its own step number then stands still.
nn::RunKey Pipeline::Impl::next_key(std::int64_t first_micro_batch) {
  if (const auto inner = nn::LayerRun::next_inner_key())
    return {.seed = keyed_seed(inner->seed, static_cast<std::int64_t>(options.seed), -1, 0),
            .step = inner->step,
            .micro_batch = first_micro_batch};
  const std::lock_guard lock(mutex_);
  evaluations_ = 0;
  if (first_micro_batch == 0) ++step_number_;
  return {.seed = options.seed, .step = step_number_ - 1, .micro_batch = first_micro_batch};
}

// Not the numbers of a step, and other numbers each time, for nets that draw in evaluation mode.
nn::RunKey Pipeline::Impl::next_evaluation_key() {
  if (const auto inner = nn::LayerRun::next_inner_key())
    return {.seed = keyed_seed(inner->seed, static_cast<std::int64_t>(options.seed), -2, 0),
            .step = inner->step};
  const std::lock_guard lock(mutex_);
  return {.seed = keyed_seed(options.seed, evaluations_++, -2, 0), .step = step_number_};
}

void Pipeline::Impl::check_inputs(const nn::Values& inputs) const {
  const int wanted = parts_->graph.inputs;
  if (static_cast<int>(inputs.size()) != wanted) {
    throw UsageError(
        text("the model takes ", wanted, " input tensors, ", inputs.size(), " were given"));
  }
}

std::shared_ptr<StepState> Pipeline::Impl::begin_step(StepInputs inputs, const nn::Values& batch) {
  inputs.shared = shared_inputs(batch);
  inputs.batch_norm = options.batch_norm;
  if (parts_->one_device_each) inputs.threads = parts_->executor.threads();
  if (inputs.wants_gradient.empty()) inputs.wants_gradient.resize(batch.size(), false);
  // A caller's backward may come when the pipeline is gone.
  inputs.suggest = [weak = weak_from_this()](int) {
    const auto impl = weak.lock();
    return impl ? impl->suggest() : std::string();
  };
  auto way = transport(inputs.table);
  return std::make_shared<StepState>(std::move(inputs), parts_->stages, parts_->cut,
                                     parts_->loss_boundary, parts_->copies, parts_->clock,
                                     std::move(way));
}

StepResult Pipeline::Impl::step(const nn::Values& given, const at::Tensor& given_target,
                                const nn::Loss& loss, StepOptions step_options) {
  const OutsideInferenceMode outside;
  const precision::Autocast autocast(options.precision);
  if (!at::GradMode::is_enabled()) {
    throw UsageError("Pipeline::step() under no_grad: a training step needs gradients",
                     {.hint = "Use evaluate() for forwards only."});
  }
  pipeline::check_history(given, given_target);
  pipeline::check_step(step_options, step_number(), options.optimizer != nullptr);
  const bool updates = options.optimizer && step_options.update == StepOptions::Update::Now;
  const double loss_scale = step_options.scaler ? step_options.scaler->scale() : 1;
  step_options.gradient_scale *= loss_scale;
  nn::Values batch = prepared(given);  // detached: nobody reads the inputs' gradients
  const at::Tensor target = plain(given_target);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  batch.push_back(target);
  const auto sizes = piece_sizes({.call = StepPlan::Call::Step,
                                  .first_micro_batch = step_options.first_micro_batch,
                                  .gradient_scale = step_options.gradient_scale,
                                  .loss = std::hash<std::string>()(loss.name),
                                  .updates = updates},
                                 batch);
  auto pieces = pipeline::split_as(batch, sizes);
  batch.pop_back();
  const auto& table = lowered(static_cast<int>(pieces.size()), options.schedule, true, updates);
  pipeline::check_loss(loss, table);

  StepInputs inputs{.table = table, .loss = &loss};
  if (inputs.whole_batch_loss() || step_options.output == StepOptions::Output::Keep)
    inputs.kept_outputs = 1;
  StepResult result{.micro_batches = table.micro_batches};
  std::vector<double> weights;
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const at::Tensor& own = pieces[m].back();
    inputs.targets.push_back(own);
    weights.push_back(own.defined() && !inputs.whole_batch_loss() ? loss.weight(own)
                                                                  : static_cast<double>(sizes[m]));
    result.weight += weights.back();
  }
  for (const double weight : weights)
    inputs.shares.push_back(result.weight == 0 ? 0 : weight / result.weight);
  inputs.whole_target = target;
  inputs.batch = without_last(std::move(pieces));
  inputs.key = next_key(step_options.first_micro_batch);
  inputs.gradient_scale = step_options.gradient_scale;
  inputs.hooks = options.hooks;
  inputs.replicas = options.replicas;
  if (updates) inputs.optimizers = optimizers();
  inputs.end = {.max_norm = options.clip_grad_norm, .p = options.clip_p, .loss_scale = loss_scale};
  const auto share =
      pipeline::share_of_replica(options.replicas, result.micro_batches, result.weight);
  inputs.key.micro_batch += share.first_micro_batch;
  if (!inputs.whole_batch_loss()) inputs.gradient_scale *= share.of_weight;
  result.micro_batches = share.micro_batches;
  const auto state = begin_step(std::move(inputs), batch);

  parts.executor.run(*state, Part::All);
  parts.remember(*state);
  for (int m = 0; m < table.micro_batches; ++m) {
    const at::Tensor& part = state->last().losses[m];  // none where the last stage is elsewhere
    if (part.defined())
      result.loss += part.item<double>() *
                     (loss.kind == nn::Loss::Kind::WholeBatch ? 1 : state->inputs.shares[m]);
  }
  if (step_options.output == StepOptions::Output::Keep && parts.stages.has_last())
    result.output = pipeline::merge_one(state->last().outputs, 0);
  if (parts.stages.has_last())
    pipeline::add_up_over_replicas(options.replicas, loss.kind == nn::Loss::Kind::WholeBatch,
                                   result);
  if (link_) {
    const auto outcome = link_->share({.loss = result.loss, .weight = result.weight});
    result.loss = outcome.loss;
    result.weight = outcome.weight;
  }
  if (updates) note_update(*state, step_options.scaler, result);
  return result;
}

nn::Values Pipeline::Impl::forward(const nn::Values& given) {
  const OutsideInferenceMode outside;
  const precision::Autocast autocast(options.precision);
  const nn::Values batch = prepared(given);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  const bool graph = at::GradMode::is_enabled();
  if (graph && options.hooks)
    throw UsageError(
        "Pipeline::forward() with gradients on a pipeline that is one of several replicas",
        {.hint = "Use step(), which weighs the replicas' parts of the mini-batch, or evaluate()."});
  auto pieces = pipeline::split_as(
      batch,
      piece_sizes({.call = graph ? StepPlan::Call::Forward : StepPlan::Call::ForwardWithoutGraph},
                  batch));
  StepInputs inputs{.table = lowered(static_cast<int>(pieces.size()), "gpipe", graph),
                    .key = next_key(),
                    .batch = std::move(pieces),
                    .evaluating = !graph,
                    .kept_outputs = parts.graph.outputs};
  for (const auto& input : given)
    inputs.wants_gradient.push_back(graph && input.defined() && input.requires_grad());
  if (link_ && graph)
    inputs.begin_backward = [link = link_, serial = link_->serial()] {
      link->agree_on_backward(serial);
    };
  inputs.hooks = options.hooks;
  const auto state = begin_step(std::move(inputs), batch);
  parts.executor.run(*state, Part::Forwards);
  parts.remember(*state);
  let_parameters_go(options, parts.stages);
  if (!parts.stages.has_last()) {
    waiting_ = graph ? std::optional(WaitingBackward{given, state}) : std::nullopt;
    if (graph) link_->group().report_status("returned from forward(), its backward() is to come");
    return nn::Values(parts.graph.outputs);
  }
  return graph ? pipeline::attach_backward(given, state, parts_)
               : pipeline::merge(state->last().outputs);
}

nn::Values Pipeline::Impl::evaluate(const nn::Values& given) {
  const OutsideInferenceMode outside;
  const precision::Autocast autocast(options.precision);
  const at::NoGradGuard no_grad;
  const nn::Values batch = prepared(given);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  const nn::TrainingModeScope mode(parts.layers(), nn::TrainingModeScope::Mode::Evaluate);
  auto pieces = pipeline::split_as(batch, piece_sizes({.call = StepPlan::Call::Evaluate}, batch));
  StepInputs inputs{.table = lowered(static_cast<int>(pieces.size()), "gpipe", false),
                    .key = next_evaluation_key(),
                    .batch = std::move(pieces),
                    .evaluating = true,
                    .kept_outputs = parts.graph.outputs};
  inputs.hooks = options.hooks;
  const auto state = begin_step(std::move(inputs), batch);
  parts.executor.run(*state, Part::Forwards);
  parts.remember(*state);
  let_parameters_go(options, parts.stages);
  if (!parts.stages.has_last()) return nn::Values(parts.graph.outputs);
  return pipeline::merge(state->last().outputs);
}

// The others wait for a backward that begins here, so one that does not is a mistake.
void Pipeline::Impl::backward_of(const at::Tensor& loss) {
  if (link_ && !link_->is_last())
    throw UsageError(
        text("Pipeline::backward() with a loss on rank ", link_->rank(),
             ", where the model's output is not"),
        {.rank = link_->rank(),
         .hint = "Pass it on the last rank, and call backward() without one elsewhere."});
  const std::uint64_t before = link_ ? link_->backwards() : 0;
  loss.backward();
  if (link_ && link_->backwards() == before)
    throw UsageError(
        "Pipeline::backward() with a loss that does not depend on what forward() returned",
        {.rank = link_->rank(),
         .hint = "The other ranks wait for the backward through the model's output."});
}

// The last rank's begins in libtorch's engine: autograd_bridge.h.
void Pipeline::Impl::backward(const at::Tensor& loss) {
  if (loss.defined()) return backward_of(loss);
  if (!link_ || link_->is_last())
    throw UsageError("Pipeline::backward() without a loss where the model's output is",
                     {.hint = "Compute the loss from what forward() returned, and pass it."});
  if (!waiting_)
    throw StateError("Pipeline::backward() without a forward() before it",
                     {.hint = "All ranks call forward() with gradients enabled, then backward()."});
  const OutsideInferenceMode outside;
  const auto [given, state] = *std::exchange(waiting_, std::nullopt);
  state->inputs.begin_backward();
  parts_->executor.run(*state, Part::Backwards);
  parts_->remember(*state);
  const nn::Values gradients = pipeline::input_gradients(*state);
  torch::autograd::variable_list roots, seeds;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!state->inputs.wants_gradient[i] || !gradients[i].defined()) continue;
    roots.push_back(given[i]);
    seeds.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
}

simulate::Costs Pipeline::Impl::profile(const nn::Values& given, const at::Tensor& given_target,
                                        const nn::Loss& loss) {
  const OutsideInferenceMode outside;
  const precision::Autocast autocast(options.precision);
  nn::Values batch = prepared(given);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  batch.push_back(plain(given_target));
  const auto sizes = piece_sizes(
      {.call = StepPlan::Call::Profile, .loss = std::hash<std::string>()(loss.name)}, batch);
  const auto relay = make_relay(sizes.size());
  simulate::Costs costs;
  relay->run([&] {
    share_budgets();
    costs = pipeline::profile_stages(parts, {pipeline::split_as(batch, sizes), sizes}, loss, *relay,
                                     lends_cores() ? core_count() : 0);
  });
  remember_costs(costs);
  const std::lock_guard lock(mutex_);
  samples_ = static_cast<int>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
  return costs;
}

}  // namespace trestle
