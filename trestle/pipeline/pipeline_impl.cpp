#include "trestle/pipeline/pipeline_impl.h"

#include <ATen/Functions.h>

#include <limits>
#include <numeric>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/device/transfer.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/mode_scope.h"
#include "trestle/pipeline/autograd_bridge.h"
#include "trestle/pipeline/micro_batch.h"
#include "trestle/pipeline/options.h"
#include "trestle/pipeline/outside_inference_mode.h"
#include "trestle/pipeline/profile.h"
#include "trestle/pipeline/profile_layers.h"
#include "trestle/pipeline/step_checks.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/fit.h"
#include "trestle/schedule/lend_cores.h"
#include "trestle/schedule/placement.h"
#include "trestle/schedule/validate.h"

namespace trestle {

using pipeline::OutsideInferenceMode;
using pipeline::Part;
using pipeline::PartitionedModel;
using pipeline::StepInputs;
using pipeline::StepState;

namespace {

std::vector<int> one_rank_each(int stages) {
  std::vector<int> ranks(stages);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

at::Tensor plain(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return tensor.is_inference() ? tensor.clone() : tensor.detach();
}

nn::Values plain(const nn::Values& values) {
  nn::Values result;
  for (const auto& value : values) result.push_back(plain(value));
  return result;
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

std::vector<nn::Values> without_last(std::vector<nn::Values> pieces) {
  for (auto& piece : pieces) piece.pop_back();
  return pieces;
}

}  // namespace

Pipeline::Impl::Impl(const nn::Layers& layers, PipelineOptions given)
    : model(layers), options(std::move(given)) {
  if (options.devices.empty()) options.devices.assign(1, cpu_device());
  const int count = static_cast<int>(model.graph().layers.size());
  pipeline::check_options(options, count);
  for (const auto& device : options.devices) {
    if (device.torch.is_privateuseone() && device.budget > 0)
      set_budget(device.torch, device.budget);
  }
  if (!options.balance.empty()) {
    cut(options.balance);
  } else if (options.devices.size() == 1) {
    cut({count});
  } else if (!options.sample.empty()) {
    const precision::Autocast autocast(options.precision);
    measure_balance(prepared(options.sample));
  }
}

// As the stages take it: without history, and in the memory format that was asked for.
nn::Values Pipeline::Impl::prepared(const nn::Values& batch) const {
  return pipeline::in_memory_format(plain(batch), options.memory_format);
}

std::vector<nn::Values> Pipeline::Impl::split(const nn::Values& batch) const {
  return pipeline::split(batch, options.micro_batches, options.split_size);
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
  return *parts_;
}

PartitionedModel& Pipeline::Impl::parts() const {
  if (!parts_) {
    throw StateError(
        "the pipeline has not been cut yet: no balance was given and no mini-batch has been seen "
        "to measure one",
        {.hint = "Give 'balance' or 'sample', or call step() or forward() first."});
  }
  return *parts_;
}

void Pipeline::Impl::cut(const std::vector<int>& balance) {
  options.balance = balance;
  const int stages = static_cast<int>(balance.size());
  const auto ranks = options.table ? options.table->rank_of_stage : one_rank_each(stages);
  parts_ = std::make_shared<PartitionedModel>(model.graph(), balance, options.devices, ranks,
                                              options.threads, options.memory_format);
  // Finds what is wrong with a table before the first step.
  tables_[{options.micro_batches, options.schedule, true}] =
      lower(options.micro_batches, options.schedule, recompute_modes());
}

void Pipeline::Impl::measure_balance(const nn::Values& batch) {
  const plan::LayerProfile profile =
      profile_layers(model.graph(), split(batch)[0], options.devices[0].torch);
  cut(plan::balance_by_time(profile, static_cast<int>(options.devices.size())));
}

std::vector<Recompute> Pipeline::Impl::recompute_modes() const {
  if (!options.recompute_per_stage.empty()) return options.recompute_per_stage;
  return std::vector<Recompute>(options.balance.size(), options.recompute);
}

const schedule::Schedule& Pipeline::Impl::lowered(int micro_batches, const std::string& name,
                                                  bool recompute) {
  const std::lock_guard lock(mutex_);
  auto& table = tables_[{micro_batches, name, recompute}];
  if (table.stages == 0)
    table = lower(micro_batches, name, recompute ? recompute_modes() : std::vector<Recompute>());
  return table;
}

schedule::Schedule Pipeline::Impl::lower(int micro_batches, const std::string& name,
                                         const std::vector<Recompute>& recompute) const {
  const int stages = static_cast<int>(options.balance.size());
  const bool given =
      options.table && options.table->micro_batches == micro_batches && name == options.schedule;
  schedule::Schedule table = given ? *options.table
                                   : schedule::generate(options.table ? "gpipe" : name,
                                                        {.stages = stages,
                                                         .micro_batches = micro_batches,
                                                         .backward_order = options.backward_order});
  if (options.table && !given) table = schedule::place(table, *options.table);
  table = schedule::lower(table, {.routes = parts_->cut.routes, .recompute = recompute});
  if (!lends_cores()) return table;
  return schedule::lend_cores(table,
                              {.all = core_count(), .each_rank = parts_->executor.threads()});
}

bool Pipeline::Impl::lends_cores() const {
  return options.core_lending == CoreLending::On && parts().can_lend_cores;
}

int Pipeline::Impl::planned_micro_batches() const {
  const std::lock_guard lock(mutex_);
  if (options.split_size > 0) return pipeline::piece_count_by_size(samples_, options.split_size);
  return samples_ > 0 ? std::min(options.micro_batches, samples_) : options.micro_batches;
}

// A table of the user's own covers one number of micro-batches; with others something else would
// run, so none are suggested.
std::string Pipeline::Impl::suggest() const {
  plan::FitQuestion question{
      .lower = [this](int count,
                      const auto& modes) { return lower(count, options.schedule, modes); },
      .micro_batches = std::max(planned_micro_batches(), 1),
      .split_size = options.split_size,
      .recompute = recompute_modes()};
  const std::lock_guard lock(mutex_);
  question.samples = std::max(samples_, question.micro_batches);
  for (const int times : {2, 4, 8}) {
    const int size = options.split_size / times;
    const int count =
        size > 0 ? pipeline::piece_count_by_size(samples_, size) : question.micro_batches * times;
    if (!options.table && count <= samples_) question.other_micro_batches.push_back(count);
  }
  for (std::size_t stage = 0; stage < costs_.device_of_stage.size(); ++stage) {
    const auto device = static_cast<std::size_t>(costs_.device_of_stage[stage]);
    question.budgets.resize(std::max(question.budgets.size(), device + 1), 0);
    question.budgets[device] = memory_usage(parts_->stages[stage].device()).budget;
  }
  return plan::suggest_fit(question, costs_);
}

std::int64_t Pipeline::Impl::step_number() const {
  const std::lock_guard lock(mutex_);
  return step_number_;
}

void Pipeline::Impl::set_step_number(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  step_number_ = step;
  evaluations_ = 0;
}

void Pipeline::Impl::remember_costs(simulate::Costs costs) {
  const std::lock_guard lock(mutex_);
  costs_ = std::move(costs);
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
  if (parts_->can_lend_cores) inputs.threads = parts_->executor.threads();
  if (inputs.wants_gradient.empty()) inputs.wants_gradient.resize(batch.size(), false);
  // A caller's backward may come when the pipeline is gone.
  inputs.suggest = [weak = weak_from_this()](int) {
    const auto impl = weak.lock();
    return impl ? impl->suggest() : std::string();
  };
  return std::make_shared<StepState>(std::move(inputs), parts_->stages, parts_->cut,
                                     parts_->loss_boundary, parts_->copies, parts_->clock,
                                     options.deadline);
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
  pipeline::check_step(step_options, step_number());
  nn::Values batch = prepared(given);  // detached: nobody reads the inputs' gradients
  const at::Tensor target = plain(given_target);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  batch.push_back(target);
  auto pieces = split(batch);
  batch.pop_back();
  const auto& table = lowered(static_cast<int>(pieces.size()), options.schedule, true);
  pipeline::check_loss(loss, table);

  StepInputs inputs{.table = table, .loss = &loss};
  if (inputs.whole_batch_loss() || step_options.output == StepOptions::Output::Keep)
    inputs.kept_outputs = 1;
  StepResult result{.micro_batches = table.micro_batches};
  std::vector<double> weights;
  for (const auto& piece : pieces) {
    const at::Tensor& own = piece.back();
    inputs.targets.push_back(own);
    weights.push_back(own.defined() && !inputs.whole_batch_loss()
                          ? loss.weight(own)
                          : static_cast<double>(pipeline::sample_count(piece)));
    result.weight += weights.back();
  }
  for (const double weight : weights)
    inputs.shares.push_back(result.weight == 0 ? 0 : weight / result.weight);
  inputs.whole_target = target;
  inputs.batch = without_last(std::move(pieces));
  inputs.key = next_key(step_options.first_micro_batch);
  inputs.gradient_scale = step_options.gradient_scale;
  const auto state = begin_step(std::move(inputs), batch);

  parts.executor.run(*state, Part::All);
  parts.remember(*state);
  for (int m = 0; m < table.micro_batches; ++m) {
    const at::Tensor& part = state->last().losses[m];
    if (part.defined())
      result.loss += part.item<double>() *
                     (loss.kind == nn::Loss::Kind::WholeBatch ? 1 : state->inputs.shares[m]);
  }
  if (step_options.output == StepOptions::Output::Keep)
    result.output = pipeline::merge_one(state->last().outputs, 0);
  return result;
}

nn::Values Pipeline::Impl::forward(const nn::Values& given) {
  const OutsideInferenceMode outside;
  const precision::Autocast autocast(options.precision);
  const nn::Values batch = prepared(given);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  auto pieces = split(batch);
  const bool graph = at::GradMode::is_enabled();
  StepInputs inputs{.table = lowered(static_cast<int>(pieces.size()), "gpipe", graph),
                    .key = next_key(),
                    .batch = std::move(pieces),
                    .evaluating = !graph,
                    .kept_outputs = parts.graph.outputs};
  for (const auto& input : given)
    inputs.wants_gradient.push_back(graph && input.defined() && input.requires_grad());
  const auto state = begin_step(std::move(inputs), batch);
  parts.executor.run(*state, Part::Forwards);
  parts.remember(*state);
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
  const nn::ModeScope mode(parts.graph, nn::ModeScope::Mode::Evaluate);
  auto pieces = split(batch);
  StepInputs inputs{.table = lowered(static_cast<int>(pieces.size()), "gpipe", false),
                    .key = next_evaluation_key(),
                    .batch = std::move(pieces),
                    .evaluating = true,
                    .kept_outputs = parts.graph.outputs};
  const auto state = begin_step(std::move(inputs), batch);
  parts.executor.run(*state, Part::Forwards);
  parts.remember(*state);
  return pipeline::merge(state->last().outputs);
}

simulate::Costs Pipeline::Impl::profile(const nn::Values& given, const at::Tensor& given_target,
                                        const nn::Loss& loss) {
  const OutsideInferenceMode outside;
  const precision::Autocast autocast(options.precision);
  nn::Values batch = prepared(given);
  PartitionedModel& parts = cut_for(batch);
  check_inputs(batch);
  batch.push_back(plain(given_target));
  const auto pieces = split(batch);
  auto costs = pipeline::profile_stages(parts, pieces, loss, lends_cores() ? core_count() : 0);
  remember_costs(costs);
  const std::lock_guard lock(mutex_);
  samples_ = pipeline::piece_count(batch, std::numeric_limits<int>::max());
  return costs;
}

}  // namespace trestle
