#include "trestle/pipeline/profile/profile_memory.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "trestle/device/device.h"
#include "trestle/device/threads.h"
#include "trestle/device/transfer.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/copies.h"

namespace trestle::pipeline {
namespace {

constexpr Bytes loss_bytes = sizeof(double);  // at most

at::Tensor on_cpu(const at::Tensor& value) {
  return value.defined() ? nn::copy_with_memory(value, at::kCPU) : value;
}

Bytes current(const Stage& stage) { return memory_usage(stage.device()).current; }
Bytes peak(const Stage& stage) { return memory_usage(stage.device()).peak; }

// The outputs of a stage, on the CPU, and their memory on the device.
struct MeasuredOutputs {
  std::vector<StageValue> values;
  std::vector<Bytes> memory;  // [value] until it has been sent
  std::vector<Bytes> saved;   // [value] the bytes of it that the stage's graph saves
  std::vector<bool> gaps;     // [value] whether it has gaps: then another rank gets a copy
  nn::Values input_gradients;
};

// Clears the stage's outputs one after the other. Memory that this does not free, the graph has
// saved.
MeasuredOutputs measure_outputs(const Stage& stage, std::vector<StageValue> produced) {
  MeasuredOutputs result;
  for (auto& made : produced) {
    const Bytes memory = nn::memory_of(made.value);
    StageValue copy = made;
    copy.value = on_cpu(made.value);
    result.gaps.push_back(made.value.defined() && !made.value.is_non_overlapping_and_dense());
    const Bytes before = current(stage);
    made.value = at::Tensor();
    result.memory.push_back(memory);
    result.saved.push_back(std::max<Bytes>(0, memory - (before - current(stage))));
    result.values.push_back(std::move(copy));
  }
  return result;
}

// The peak memory of a stage's output gradients while they arrive: the gradients of an output that
// several stages use are summed.
Bytes peak_of_arrival(const Stage& stage, const nn::Values& gradients) {
  Bytes adding = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (stage.plan().output_routes[i] > 1) adding = std::max(adding, 2 * bytes_of({gradients[i]}));
  }
  return bytes_of(gradients) + adding;
}

// Runs one B, or I. Returns its peak memory above that before its gradients arrived.
Bytes measure_backward(const ProfiledStage& profiled, Pass& pass, BackwardPart part,
                       nn::Values* input_gradients) {
  const Stage& stage = *profiled.stage;
  const Bytes before = current(stage);
  const nn::Values gradients = profiled.gradients();
  reset_peak_memory(stage.device());
  *input_gradients = profiled.backward(pass, gradients, part);
  const Bytes loss = stage.is_last() ? loss_bytes : 0;  // a step stores it
  return std::max(peak(stage) - before, peak_of_arrival(stage, gradients)) + loss;
}

// Runs one F with its graph, and one B.
MeasuredOutputs measure_once(const ProfiledStage& profiled, simulate::StageCost& cost) {
  const Stage& stage = *profiled.stage;
  const Bytes before = current(stage);
  reset_peak_memory(stage.device());
  Pass pass = profiled.new_pass();
  auto produced = profiled.forward(pass, GraphMode::Keep);
  const Bytes most = peak(stage);

  // The outputs count as the routes' bytes, except what the graph has saved.
  MeasuredOutputs result = measure_outputs(stage, std::move(produced));
  cost.saved = std::max<Bytes>(0, current(stage) - before);
  cost.transient_forward = std::max<Bytes>(0, most - before - cost.saved);
  // For a whole-batch loss a step keeps the outputs until its end; `saved` has them until B's end.
  nn::Values outputs;
  if (profiled.whole_batch_loss())
    for (const auto& output : pass.model_outputs)
      outputs.push_back(output.defined() ? output.detach() : output);
  cost.transient_backward =
      measure_backward(profiled, pass, BackwardPart::Whole, &result.input_gradients);
  outputs.clear();
  for (auto& gradient : result.input_gradients) gradient = on_cpu(gradient);
  return result;
}

// Runs one F that keeps only its inputs, its R and its B.
void measure_recompute(const ProfiledStage& profiled, simulate::StageCost& cost) {
  const Stage& stage = *profiled.stage;
  const Bytes before = current(stage);
  reset_peak_memory(stage.device());
  Pass pass = profiled.new_pass();
  nn::BufferCopies copies;
  auto produced = profiled.forward(pass, GraphMode::Recompute, copies);
  Bytes most = peak(stage);
  pass.model_outputs.clear();
  produced.clear();
  cost.kept_for_recompute = std::max<Bytes>(0, current(stage) - before);
  cost.transient_no_graph = std::max<Bytes>(0, most - before - cost.kept_for_recompute);

  reset_peak_memory(stage.device());
  stage.recompute(pass);
  most = peak(stage);
  cost.recompute_excess = std::max<Bytes>(0, current(stage) - before - cost.saved);
  cost.transient_recompute = std::max<Bytes>(0, most - before - cost.saved - cost.recompute_excess);
  nn::Values input_gradients;
  const Bytes backward = measure_backward(profiled, pass, BackwardPart::Whole, &input_gradients);
  // The backward puts the buffers of R in place, and keeps those of now.
  const Bytes buffers = bytes_of(stage.buffers());
  cost.recompute_excess += buffers;
  cost.transient_backward = std::max(cost.transient_backward, backward - buffers);
}

// Runs one F, its I and its W. Counts what is left between I and W. Returns W's peak beyond it.
Bytes measure_split(const ProfiledStage& profiled, simulate::StageCost& cost) {
  const Stage& stage = *profiled.stage;
  const Bytes before = current(stage);
  Pass pass = profiled.new_pass();
  measure_outputs(stage, profiled.forward(pass, GraphMode::Keep));
  nn::Values input_gradients;
  const Bytes most = measure_backward(profiled, pass, BackwardPart::Inputs, &input_gradients);
  input_gradients.clear();
  const Bytes left = std::max<Bytes>(0, current(stage) - before);
  cost.kept_for_weights = std::max(cost.kept_for_weights.value_or(0), left);
  cost.transient_backward = std::max(cost.transient_backward, most);
  reset_peak_memory(stage.device());
  stage.accumulate_weights(pass);
  return std::max<Bytes>(0, peak(stage) - before - left);
}

void clear_gradients(const Stage& stage) {
  for (auto& parameter : stage.parameters()) parameter.mutable_grad() = at::Tensor();
}

// Measures F and B twice: as the first of a step, whose B makes the parameters' gradients, and as a
// later one, whose B adds to them; then F, R and B. A schedule with I and W adds F, I and W, as the
// first of a step and as a later one.
MeasuredOutputs measure_bytes(const ProfiledStage& profiled, BackwardPart part,
                              simulate::StageCost& cost) {
  const Stage& stage = *profiled.stage;
  cost.persistent = bytes_of(stage.parameters()) + bytes_of(stage.buffers());
  clear_gradients(stage);
  measure_once(profiled, cost);
  cost.transient_first_backward = cost.transient_backward;
  for (const auto& parameter : stage.parameters()) cost.gradients += bytes_of({parameter.grad()});
  MeasuredOutputs result = measure_once(profiled, cost);
  measure_recompute(profiled, cost);
  if (part == BackwardPart::Inputs) {
    clear_gradients(stage);
    cost.transient_first_weight_grad = measure_split(profiled, cost);
    cost.transient_weight_grad = measure_split(profiled, cost);
  }
  if (stage.is_last()) cost.output_kept = loss_bytes;
  return result;
}

// The first run in each mode: the stage finds out what it writes to. Returns its outputs.
std::vector<StageValue> warm_up(ProfiledStage& profiled) {
  std::vector<StageValue> result;
  for (const GraphMode mode : {GraphMode::Recompute, GraphMode::Keep}) {
    Pass pass = profiled.new_pass();
    result = measure_outputs(*profiled.stage, profiled.forward(pass, mode)).values;
    if (mode != GraphMode::Keep || !profiled.whole_batch_loss()) continue;
    const at::AutoGradMode grad(true);
    nn::GradientSink sink(1);
    const at::Tensor whole = sink.begin(0, at::cat({pass.model_outputs.at(0).detach()}));
    profiled.loss->value(whole, profiled.target).backward();
    profiled.loss_gradient = sink.gradient(0);
  }
  return result;
}

// One micro-batch, forwards and backwards through all stages.
class MemoryProfile {
 public:
  MemoryProfile(PartitionedModel& model, StageExchange& exchange, simulate::Costs& costs,
                BackwardPart part, int threads)
      : model_(model),
        exchange_(exchange),
        costs_(costs),
        part_(part),
        threads_(threads > 0 ? threads : model.executor.threads()) {}

  void run_forwards(const nn::Values& micro_batch, const nn::Loss& loss) {
    for (std::size_t i = 0; i + 1 < micro_batch.size(); ++i)
      known_[{nn::model_input, static_cast<int>(i)}].value = micro_batch[i];
    for (int s = 0; s < model_.stages.count(); ++s) {
      exchange_.carry(
          s, StageExchange::Way::Activation, 0,
          [&](int, const ValueId& id) { return known_.at(id); },
          [&](const ValueId& id, StageValue received) { known_[id] = std::move(received); });
      if (model_.stages.has(s)) run_forward(model_.stages[s], micro_batch.back(), loss);
    }
  }

  void run_backwards() {
    std::size_t left = profileds_.size();
    for (int s = model_.stages.count(); s-- > 0;) {
      exchange_.carry(
          s, StageExchange::Way::Gradient, 0,
          [&](int taker, const ValueId& id) {
            return StageValue{.value = sent_gradients_.at({taker, id})};
          },
          [&](const ValueId& id, const StageValue& received) { add(id, received.value); });
      if (model_.stages.has(s)) run_backward(profileds_[--left], costs_.stages[s]);
    }
  }

  // A copy of a tied parameter may share the owner's memory.
  void describe_ties() const {
    for (std::size_t i = 0; i < model_.cut.ties.size(); ++i) {
      const schedule::Route& route = model_.cut.ties[i].route;
      const at::Tensor& owner = model_.ties.owner(static_cast<int>(i));
      const at::Tensor& copy = model_.ties.copy(static_cast<int>(i));
      costs_.ties[i].bytes = std::max(bytes_of({owner}), bytes_of({copy}));
      const at::Tensor& either = owner.defined() ? owner : copy;
      costs_.ties[i].frozen = either.defined() && !either.requires_grad();
      if (owner.defined() && copy.defined() && copy.is_alias_of(owner))
        costs_.stages[static_cast<std::size_t>(route.to_stage)].persistent -= bytes_of({copy});
    }
  }

  // Over ranks: the sizes of all routes of this rank's stages, and more of those that leave them.
  void describe_routes() const {
    for (std::size_t r = 0; r < model_.cut.routes.size(); ++r) {
      const auto& ends = model_.cut.routes[r];
      const bool leaves = model_.stages.has(ends.from_stage);
      if (!leaves && !model_.stages.has(ends.to_stage)) continue;
      simulate::RouteCost& route = costs_.routes[r];
      for (const auto& value : model_.cut.route_values[r]) {
        const Bytes bytes = bytes_of({known_.at(value).value});
        route.bytes += bytes;
        if (!leaves) continue;
        const Waiting& waits = waiting_.at(value);
        // A message to another rank has no gaps: a copy of a value with gaps waits to be sent.
        const bool copied = waits.gaps && exchange_.crosses(r);
        route.saved += copied ? 0 : waits.saved;
        route.activation_excess += copied ? waits.memory : std::max<Bytes>(0, waits.memory - bytes);
      }
    }
  }

  std::vector<ProfiledStage> take_profileds() { return std::move(profileds_); }

 private:
  struct Waiting {
    Bytes memory = 0, saved = 0;
    bool gaps = false;
  };

  void run_on(const Stage& stage, const std::function<void()>& job) {
    model_.executor.run_on(stage.index() % model_.executor.ranks(), [&] {
      std::optional<DeviceThreads> threads;  // as in a step
      if (model_.one_device_each) threads.emplace(stage.device(), threads_);
      job();
    });
  }

  bool stays_on_device(const ValueId& value, const Stage& taker) const {
    for (std::size_t r = 0; r < model_.cut.routes.size(); ++r) {
      const schedule::Route& route = model_.cut.routes[r];
      const auto& values = model_.cut.route_values[r];
      if (route.to_stage == taker.index() && !exchange_.crosses(r) &&
          std::find(values.begin(), values.end(), value) != values.end())
        return model_.stages[route.from_stage].device() == taker.device();
    }
    return false;
  }

  void run_forward(const Stage& stage, const at::Tensor& target, const nn::Loss& loss) {
    ProfiledStage profiled{.stage = &stage, .loss = &loss};
    for (const auto& input : stage.plan().inputs) {
      profiled.inputs.push_back(known_.at(input));
      at::Tensor& value = profiled.inputs.back().value;
      // A transfer closes gaps. A stage of the same rank gets the tensor itself.
      if (value.defined() && stays_on_device(input, stage))
        value = nn::copy_with_memory(value, stage.device());
      else
        value = to_device(value, stage.device());
    }
    if (stage.is_last()) profiled.target = to_device(target, stage.device());
    std::vector<StageValue> made;
    run_on(stage, [&] { made = warm_up(profiled); });
    for (std::size_t i = 0; i < made.size(); ++i) known_[stage.plan().outputs[i]] = made[i];
    profileds_.push_back(std::move(profiled));
  }

  void run_backward(ProfiledStage& profiled, simulate::StageCost& cost) {
    const StagePlan& plan = profiled.stage->plan();
    for (const auto& output : plan.outputs) profiled.output_gradients.push_back(gradients_[output]);
    MeasuredOutputs result;
    run_on(*profiled.stage, [&] { result = measure_bytes(profiled, part_, cost); });
    for (std::size_t i = 0; i < plan.outputs.size(); ++i)
      waiting_[plan.outputs[i]] = {result.memory[i], result.saved[i], result.gaps[i]};
    for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
      add(plan.inputs[i], result.input_gradients[i]);
      if (exchange_.over_ranks())
        sent_gradients_[{profiled.stage->index(), plan.inputs[i]}] = result.input_gradients[i];
    }
  }

  void add(const ValueId& value, const at::Tensor& gradient) {
    at::Tensor& sum = gradients_[value];
    if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
  }

  PartitionedModel& model_;
  StageExchange& exchange_;
  simulate::Costs& costs_;
  const BackwardPart part_;
  const int threads_;
  std::vector<ProfiledStage> profileds_;
  std::map<ValueId, StageValue> known_;  // all values so far, on the CPU
  std::map<ValueId, Waiting> waiting_;   // their memory until they are sent
  std::map<ValueId, at::Tensor> gradients_;
  // [stage that used a value, value] its gradient, for other ranks
  std::map<std::pair<int, ValueId>, at::Tensor> sent_gradients_;
};

}  // namespace

Pass ProfiledStage::new_pass() const {
  Pass pass;
  for (const auto& input : inputs) {
    pass.inputs.push_back(input);
    pass.inputs.back().owned = true;
    if (input.value.defined())
      pass.inputs.back().value = nn::copy_with_memory(input.value, input.value.device());
  }
  return pass;
}

nn::Values ProfiledStage::gradients() const {
  nn::Values result;
  for (const auto& value : output_gradients) result.push_back(to_device(value, stage->device()));
  return result;
}

std::vector<StageValue> ProfiledStage::forward(Pass& pass, GraphMode mode) const {
  nn::BufferCopies copies;
  return forward(pass, mode, copies);
}

std::vector<StageValue> ProfiledStage::forward(Pass& pass, GraphMode mode,
                                               nn::BufferCopies& copies) const {
  return stage->forward(pass, mode, copies, {});
}

nn::Values ProfiledStage::backward(Pass& pass, const nn::Values& output_gradients,
                                   BackwardPart part) const {
  if (!stage->is_last()) return stage->backward(pass, part, output_gradients, {});
  if (whole_batch_loss()) return stage->backward(pass, part, output_gradients, {loss_gradient});
  at::Tensor value;
  {
    const at::AutoGradMode grad(true);
    value = loss->value(pass.model_outputs.at(0), target.defined() ? target.clone() : target);
  }
  return stage->backward_from_loss(pass, part, output_gradients, value,
                                   at::ones_like(value.detach()));
}

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  Bytes total = 0;
  for (const auto& tensor : tensors) {
    if (tensor.defined()) total += static_cast<Bytes>(tensor.nbytes());
  }
  return total;
}

std::vector<ProfiledStage> profile_memory(PartitionedModel& model, const nn::Values& micro_batch,
                                          const nn::Loss& loss, StageExchange& exchange,
                                          simulate::Costs& costs, BackwardPart part, int threads) {
  MemoryProfile profile(model, exchange, costs, part, threads);
  profile.run_forwards(micro_batch, loss);
  profile.run_backwards();
  profile.describe_routes();
  profile.describe_ties();
  return profile.take_profileds();
}

}  // namespace trestle::pipeline
