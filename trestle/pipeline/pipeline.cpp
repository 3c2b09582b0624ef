#include "trestle/pipeline/pipeline.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/unlimited_budgets.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/evaluation_mode.h"
#include "trestle/pipeline/autograd_bridge.h"
#include "trestle/pipeline/micro_batch.h"
#include "trestle/pipeline/partitioned_model.h"
#include "trestle/pipeline/profile.h"
#include "trestle/pipeline/profile_layers.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/fit.h"
#include "trestle/schedule/placement.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

namespace trestle {

using pipeline::Part;
using pipeline::PartitionedModel;
using pipeline::StepState;

namespace {

std::vector<int> one_rank_each(int stages) {
  std::vector<int> ranks(stages);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void check_options(const PipelineOptions& options, int layers) {
  if (options.micro_batches < 1) {
    throw UsageError(text("micro_batches = ", options.micro_batches, " is not at least 1"));
  }
  const int stages = options.balance.empty() ? static_cast<int>(options.devices.size())
                                             : static_cast<int>(options.balance.size());
  if (stages > layers) {
    throw UsageError(text("a model of ", layers, " layers cannot be cut into ", stages, " stages"),
                     {.hint = "Use at most one stage a layer."});
  }
  if (options.devices.size() != 1 && static_cast<int>(options.devices.size()) != stages) {
    throw UsageError(
        text("balance has ", stages, " stages, but ", options.devices.size(), " devices are given"),
        {.hint = "Name one device for each stage (one may stand several times), or a single one "
                 "for all."});
  }
  if (!options.recompute_per_stage.empty() &&
      static_cast<int>(options.recompute_per_stage.size()) != stages) {
    throw UsageError(text("recompute_per_stage has ", options.recompute_per_stage.size(),
                          " entries, the pipeline ", stages, " stages"));
  }
  if (options.table && options.table->stages != stages) {
    throw UsageError(text("the given table is for ", options.table->stages,
                          " stages, the pipeline has ", stages));
  }
}

}  // namespace

class Pipeline::Impl : public std::enable_shared_from_this<Pipeline::Impl> {
 public:
  Impl(const nn::Layers& layers, PipelineOptions given) : model(layers), options(std::move(given)) {
    if (options.devices.empty()) options.devices.assign(1, cpu_device());
    const nn::Graph graph = model.graph();
    check_options(options, static_cast<int>(graph.layers.size()));
    schedule::generate(options.schedule,
                       {.stages = 1, .micro_batches = 1});  // throws if there is no such schedule
    for (const auto& device : options.devices) {
      if (device.torch.is_privateuseone() && device.budget > 0)
        set_budget(device.torch, device.budget);
    }
    if (!options.balance.empty()) {
      assemble(options.balance);
    } else if (options.devices.size() == 1) {
      assemble({static_cast<int>(graph.layers.size())});
    } else if (!options.sample.empty()) {
      measure_balance(options.sample);
    }
  }

  // The balance may have to wait for the first mini-batch.
  PartitionedModel& assembled(const nn::Values& inputs) {
    if (!assembly) measure_balance(inputs);
    return *assembly;
  }
  PartitionedModel& assembled() const {
    if (!assembly) {
      throw StateError(
          "the pipeline has not been cut yet: no balance was given and no mini-batch has been seen "
          "to measure one",
          {.hint = "Give 'balance' or 'sample', or call step() or forward() first."});
    }
    return *assembly;
  }

  const schedule::Schedule& lowered(int micro_batches, const std::string& name, bool recompute) {
    auto& table = tables[{micro_batches, name, recompute}];
    if (table.stages == 0) table = lower(micro_batches, name, recompute);
    return table;
  }

  std::shared_ptr<StepState> begin_step(const nn::Values& inputs, const schedule::Schedule& table,
                                        const std::vector<nn::Values>& pieces) {
    auto state =
        std::make_shared<StepState>(table, assembly->stages, assembly->cut, options.deadline);
    state->seed = options.seed;
    state->step = step_number;
    for (int m = 0; m < table.micro_batches; ++m) {
      state->inputs[m].assign(pieces[m].begin(),
                              pieces[m].begin() + static_cast<std::ptrdiff_t>(inputs.size()));
    }
    for (const auto& input : inputs) {
      state->input_wants_gradient.push_back(input.defined() && input.requires_grad() &&
                                            at::GradMode::is_enabled());
    }
    samples = pipeline::piece_count(inputs, std::numeric_limits<int>::max());
    // A caller's backward may come when the pipeline is gone.
    state->suggest = [weak = weak_from_this()](int stage) {
      const auto impl = weak.lock();
      return impl ? impl->suggest(stage) : std::string();
    };
    return state;
  }

  void check_inputs(const nn::Values& inputs) const {
    const int wanted = assembly->graph.inputs;
    if (static_cast<int>(inputs.size()) != wanted) {
      throw UsageError(
          text("the model takes ", wanted, " input tensors, ", inputs.size(), " were given"));
    }
  }

  void assemble(const std::vector<int>& balance) {
    options.balance = balance;
    const int stages = static_cast<int>(balance.size());
    const auto ranks = options.table ? options.table->rank_of_stage : one_rank_each(stages);
    assembly = std::make_shared<PartitionedModel>(model.graph(), balance, options.devices, ranks,
                                                  options.threads);
    lowered(options.micro_batches, options.schedule,
            true);  // finds what is wrong with a table before the first step
  }

  // All layers on the first device, which need not have room for them.
  std::vector<double> layer_costs(const nn::Values& batch) {
    const at::Device device = options.devices[0].torch;
    const UnlimitedBudgets no_budget({device});
    model.to(device);
    nn::Values piece = pipeline::split(batch, options.micro_batches)[0];
    for (auto& value : piece) value = to_device(value, device);
    return pipeline::profile_layers(model.graph(), piece);
  }

  void measure_balance(const nn::Values& batch) {
    assemble(plan::balance(layer_costs(batch), static_cast<int>(options.devices.size())));
  }

  std::vector<Recompute> recompute_modes() const {
    if (!options.recompute_per_stage.empty()) return options.recompute_per_stage;
    return std::vector<Recompute>(options.balance.size(), options.recompute);
  }

  schedule::Schedule lower(int micro_batches, const std::string& name, bool recompute) const {
    const int stages = static_cast<int>(options.balance.size());
    const bool given =
        options.table && options.table->micro_batches == micro_batches && name == options.schedule;
    schedule::Schedule table = given
                                   ? *options.table
                                   : schedule::generate(options.table ? "gpipe" : name,
                                                        {.stages = stages,
                                                         .micro_batches = micro_batches,
                                                         .backward_order = options.backward_order});
    if (options.table && !given) table = schedule::place(table, *options.table);
    schedule::LowerOptions lowering{.routes = assembly->cut.routes};
    if (recompute) lowering.recompute = recompute_modes();
    return schedule::lower(table, lowering);
  }

  // What would make a stage fit that ran out of memory.
  std::string suggest(int stage) const {
    const Bytes limit = memory_usage(assembly->stages[stage].device()).budget;
    return plan::suggest_fit({.stage = stage,
                              .budget = limit,
                              .schedule = options.schedule,
                              .micro_batches = options.micro_batches,
                              .most_micro_batches = samples,
                              .backward_order = options.backward_order,
                              .recompute = recompute_modes(),
                              .routes = assembly->cut.routes},
                             costs);
  }

  nn::Layers model;
  PipelineOptions options;
  std::shared_ptr<PartitionedModel> assembly;
  std::map<std::tuple<int, std::string, bool>, schedule::Schedule> tables;
  std::int64_t step_number = 0;
  simulate::Costs costs;
  int samples = 0;  // of the latest mini-batch
};

Pipeline::Pipeline(const nn::Layers& model, PipelineOptions options)
    : impl_(std::make_shared<Impl>(model, std::move(options))) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

StepResult Pipeline::step(const at::Tensor& input, const at::Tensor& target, const nn::Loss& loss,
                          StepOptions options) {
  return step(nn::Values{input}, target, loss, options);
}

StepResult Pipeline::step(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss,
                          StepOptions options) {
  if (!at::GradMode::is_enabled()) {
    throw UsageError("Pipeline::step() under no_grad: a training step needs gradients",
                     {.hint = "Use evaluate() for forwards only."});
  }
  PartitionedModel& assembly = impl_->assembled(inputs);
  impl_->check_inputs(inputs);
  nn::Values batch;
  for (const auto& input : inputs) batch.push_back(input.defined() ? input.detach() : input);
  batch.push_back(target);
  const auto pieces = pipeline::split(batch, impl_->options.micro_batches);
  const auto& table =
      impl_->lowered(static_cast<int>(pieces.size()), impl_->options.schedule, true);
  const bool whole = loss.kind == nn::Loss::Kind::WholeBatch;
  if (whole && !schedule::all_forwards_first(table)) {
    throw UsageError(
        text("loss '", loss.name, "' needs the outputs of the whole mini-batch, but schedule '",
             table.name, "' starts a backward before the last forward"),
        {.hint = "Use schedule 'gpipe', or a loss that is defined for each micro-batch (for dice: "
                 "dice_per_micro_batch(), a different loss)."});
  }
  batch.pop_back();
  auto state = impl_->begin_step(batch, table, pieces);  // detached: nobody reads their gradients
  state->loss = &loss;
  state->keep_outputs = whole || options.output == StepOptions::Output::Keep;
  StepResult result{.micro_batches = table.micro_batches};
  std::vector<double> weights;
  for (const auto& piece : pieces)
    weights.push_back(whole ? static_cast<double>(piece.back().size(0))
                            : loss.weight(piece.back()));
  result.weight = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    state->shares.push_back(result.weight == 0 ? 0 : weights[m] / result.weight);
    state->targets.push_back(whole ? at::Tensor()
                                   : to_device(pieces[m].back(), assembly.last_device()));
  }
  if (whole) state->whole_target = to_device(target, assembly.last_device());

  assembly.executor.run(*state, Part::All);
  ++impl_->step_number;
  assembly.set_timeline(state->timeline());
  for (int m = 0; m < table.micro_batches; ++m) {
    if (state->losses[m].defined())
      result.loss += state->losses[m].item<double>() * (whole ? 1 : state->shares[m]);
  }
  if (options.output == StepOptions::Output::Keep)
    result.output = pipeline::merge(state->outputs).at(0);
  return result;
}

at::Tensor Pipeline::forward(const at::Tensor& input) {
  const nn::Values outputs = forward(nn::Values{input});
  if (outputs.size() != 1)
    throw UsageError(text("the model returns ", outputs.size(), " tensors: call forward(Values)"));
  return outputs[0];
}

nn::Values Pipeline::forward(const nn::Values& inputs) {
  PartitionedModel& assembly = impl_->assembled(inputs);
  impl_->check_inputs(inputs);
  nn::Values detached;
  for (const auto& input : inputs) detached.push_back(input.defined() ? input.detach() : input);
  const auto pieces = pipeline::split(detached, impl_->options.micro_batches);
  const bool graph = at::GradMode::is_enabled();
  const auto& table = impl_->lowered(static_cast<int>(pieces.size()), "gpipe", graph);
  auto state = impl_->begin_step(inputs, table, pieces);
  state->keep_outputs = true;
  state->evaluating = !graph;
  assembly.executor.run(*state, Part::Forwards);
  ++impl_->step_number;
  assembly.set_timeline(state->timeline());
  for (const auto& piece : state->outputs) {
    auto& sizes = state->output_sizes.emplace_back();
    for (const auto& value : piece)
      sizes.push_back(value.defined() && value.dim() > 0 ? value.size(0) : 0);
  }
  nn::Values outputs = pipeline::merge(state->outputs);
  state->outputs.clear();
  return graph ? pipeline::attach_backward(outputs, inputs, state, impl_->assembly) : outputs;
}

at::Tensor Pipeline::evaluate(const at::Tensor& input) {
  const nn::Values outputs = evaluate(nn::Values{input});
  if (outputs.size() != 1)
    throw UsageError(text("the model returns ", outputs.size(), " tensors: call evaluate(Values)"));
  return outputs[0];
}

nn::Values Pipeline::evaluate(const nn::Values& inputs) {
  const at::NoGradGuard no_grad;
  PartitionedModel& assembly = impl_->assembled(inputs);
  impl_->check_inputs(inputs);
  const nn::EvaluationMode mode(assembly.graph);
  const auto pieces = pipeline::split(inputs, impl_->options.micro_batches);
  auto state = impl_->begin_step(
      inputs, impl_->lowered(static_cast<int>(pieces.size()), "gpipe", false), pieces);
  state->keep_outputs = true;
  state->evaluating = true;
  assembly.executor.run(*state, Part::Forwards);
  assembly.set_timeline(state->timeline());
  return pipeline::merge(state->outputs);
}

std::vector<at::Tensor> Pipeline::parameters() const { return impl_->model.parameters(); }
std::vector<std::pair<std::string, at::Tensor>> Pipeline::named_parameters() const {
  return impl_->model.named_parameters();
}
std::vector<std::pair<std::string, at::Tensor>> Pipeline::named_buffers() const {
  return impl_->model.named_buffers();
}
std::vector<at::Tensor> Pipeline::stage_parameters(int stage) const {
  return impl_->assembled().stages.at(stage).parameters();
}

void Pipeline::zero_grad() {
  for (auto& parameter : parameters()) parameter.mutable_grad() = at::Tensor();
}
void Pipeline::train() { impl_->model.train(); }
void Pipeline::eval() { impl_->model.eval(); }

std::int64_t Pipeline::step_number() const { return impl_->step_number; }
void Pipeline::set_step_number(std::int64_t step) { impl_->step_number = step; }

int Pipeline::stage_count() const { return static_cast<int>(impl_->assembled().stages.size()); }
const std::vector<int>& Pipeline::balance() const {
  impl_->assembled();
  return impl_->options.balance;
}
const Device& Pipeline::device(int stage) const {
  const auto& devices = impl_->options.devices;
  return devices[devices.size() == 1 ? 0 : stage];
}
nn::Layers& Pipeline::model() { return impl_->model; }
const PipelineOptions& Pipeline::options() const { return impl_->options; }

schedule::Schedule Pipeline::schedule(int micro_batches) const {
  impl_->assembled();
  return impl_->lowered(micro_batches == 0 ? impl_->options.micro_batches : micro_batches,
                        impl_->options.schedule, true);
}

const schedule::Timeline& Pipeline::timeline() const { return impl_->assembled().timeline(); }

simulate::Costs Pipeline::profile(const nn::Values& inputs, const at::Tensor& target,
                                  const nn::Loss& loss) {
  PartitionedModel& assembly = impl_->assembled(inputs);
  impl_->check_inputs(inputs);
  nn::Values batch = inputs;
  batch.push_back(target);
  const auto pieces = pipeline::split(batch, impl_->options.micro_batches);
  const nn::Values inputs_of_one(pieces[0].begin(), pieces[0].end() - 1);
  impl_->costs = pipeline::profile_stages(assembly, inputs_of_one, pieces[0].back(), loss,
                                          static_cast<int>(pieces.size()));
  return impl_->costs;
}

void Pipeline::remember_costs(simulate::Costs costs) { impl_->costs = std::move(costs); }

schedule::Timeline Pipeline::predict(const simulate::Costs& costs, int micro_batches) const {
  return simulate::simulate(schedule(micro_batches), costs);
}

}  // namespace trestle
