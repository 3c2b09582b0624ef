#include "trestle/pipeline/profile_memory.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "trestle/device/device.h"
#include "trestle/device/transfer.h"
#include "trestle/nn/boundary.h"

namespace trestle::pipeline {
namespace {

constexpr Bytes number_bytes = sizeof(double);  // of a loss, at most

at::Tensor on_cpu(const at::Tensor& value) {
  return value.defined() ? to_device(value, at::kCPU).clone() : value;
}

Bytes current(const Stage& stage) { return memory_usage(stage.device()).current; }
Bytes peak(const Stage& stage) { return memory_usage(stage.device()).peak; }

// What a stage hands on, on the CPU, and the memory behind it.
struct HandedOn {
  std::vector<StageValue> values;
  std::vector<Bytes> memory;  // of each value while it waits to be taken
  std::vector<Bytes> saved;   // of that, what the stage's graph keeps too
  std::vector<bool> gaps;     // does a message to another rank need a copy without them?
  nn::Values input_gradients;
};

// Lets go of the stage's outputs one after the other: what that does not free the graph has saved.
HandedOn hand_on(const Stage& stage, std::vector<StageValue> produced) {
  HandedOn result;
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

// The most that the gradients of a stage's outputs need while they come in: those of one output add
// up where several stages take it.
Bytes receiving(const Stage& stage, const nn::Values& gradients) {
  Bytes adding = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (stage.plan().output_routes[i] > 1) adding = std::max(adding, 2 * bytes_of({gradients[i]}));
  }
  return bytes_of(gradients) + adding;
}

// One B, watched: the most it needs beyond what was there before its gradients came.
Bytes measure_backward(const ProfiledStage& subject, Pass& pass, nn::Values* input_gradients) {
  const Stage& stage = *subject.stage;
  const Bytes before = current(stage);
  const nn::Values gradients = subject.gradients();
  reset_peak_memory(stage.device());
  *input_gradients = subject.backward(pass, gradients);
  const Bytes loss = stage.is_last() ? number_bytes : 0;  // a step notes it down
  return std::max(peak(stage) - before, receiving(stage, gradients)) + loss;
}

// One F with its graph and one B, watched.
HandedOn measure_once(const ProfiledStage& subject, simulate::StageCost& cost) {
  const Stage& stage = *subject.stage;
  const Bytes before = current(stage);
  reset_peak_memory(stage.device());
  Pass pass = subject.fresh();
  auto produced = subject.forward(pass, GraphMode::Keep);
  const Bytes most = peak(stage);

  // The outputs travel on: their bytes are the route's, and stay here only as far as the graph
  // saved them.
  HandedOn result = hand_on(stage, std::move(produced));
  cost.saved = std::max<Bytes>(0, current(stage) - before);
  cost.transient_forward = std::max<Bytes>(0, most - before - cost.saved);
  cost.transient_backward = measure_backward(subject, pass, &result.input_gradients);
  for (auto& gradient : result.input_gradients) gradient = on_cpu(gradient);
  return result;
}

// One F that keeps its inputs alone, its R and its B, watched.
void measure_recompute(const ProfiledStage& subject, simulate::StageCost& cost) {
  const Stage& stage = *subject.stage;
  const Bytes before = current(stage);
  reset_peak_memory(stage.device());
  Pass pass = subject.fresh();
  nn::BufferCopies copies;
  auto produced = subject.forward(pass, GraphMode::Recompute, copies);
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
  cost.transient_backward =
      std::max(cost.transient_backward, measure_backward(subject, pass, &input_gradients));
}

// Memory: F and B as they begin a step, when B makes the gradients, and as they go on, when it adds
// to them; the same with R between them. Returns what the stage hands on.
HandedOn measure_bytes(const ProfiledStage& subject, simulate::StageCost& cost) {
  const Stage& stage = *subject.stage;
  cost.persistent = bytes_of(stage.parameters()) + bytes_of(stage.buffers());
  for (auto& parameter : stage.parameters()) parameter.mutable_grad() = at::Tensor();
  measure_once(subject, cost);
  cost.transient_first_backward = cost.transient_backward;
  for (const auto& parameter : stage.parameters()) cost.gradients += bytes_of({parameter.grad()});
  HandedOn result = measure_once(subject, cost);
  measure_recompute(subject, cost);
  if (stage.is_last()) cost.output_kept = number_bytes;  // the loss
  return result;
}

// The first runs, in each mode: a stage learns what it does on copies. Returns what it hands on.
std::vector<StageValue> learn(ProfiledStage& subject) {
  std::vector<StageValue> result;
  for (const GraphMode mode : {GraphMode::Recompute, GraphMode::Keep}) {
    Pass pass = subject.fresh();
    result = hand_on(*subject.stage, subject.forward(pass, mode)).values;
    if (mode != GraphMode::Keep || !subject.whole_batch_loss()) continue;
    const at::AutoGradMode grad(true);
    nn::GradientSink sink(1);
    const at::Tensor whole = sink.begin(0, at::cat({pass.model_outputs.at(0).detach()}));
    subject.loss->value(whole, subject.target).backward();
    subject.loss_gradient = sink.gradient(0);
  }
  return result;
}

// One micro-batch on its way through all stages and back.
class MemoryProfile {
 public:
  MemoryProfile(PartitionedModel& model, StageExchange& exchange, simulate::Costs& costs)
      : model_(model), exchange_(exchange), costs_(costs) {}

  void run_forwards(const nn::Values& piece, const nn::Loss& loss) {
    for (std::size_t i = 0; i + 1 < piece.size(); ++i)
      known_[{nn::model_input, static_cast<int>(i)}].value = piece[i];
    for (int s = 0; s < model_.stages.count(); ++s) {
      exchange_.carry(
          s, StageExchange::Way::Activation, 0,
          [&](int, const ValueId& id) { return known_.at(id); },
          [&](const ValueId& id, StageValue came) { known_[id] = std::move(came); });
      if (model_.stages.has(s)) run_forward(model_.stages[s], piece.back(), loss);
    }
  }

  void run_backwards() {
    std::size_t left = subjects_.size();
    for (int s = model_.stages.count(); s-- > 0;) {
      exchange_.carry(
          s, StageExchange::Way::Gradient, 0,
          [&](int taker, const ValueId& id) {
            return StageValue{.value = came_.at({taker, id})};
          },
          [&](const ValueId& id, const StageValue& came) { add(id, came.value); });
      if (model_.stages.has(s)) run_backward(subjects_[--left], costs_.stages[s]);
    }
  }

  // Over ranks what leaves a stage is its rank's to know, and of what enters one the size.
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
        // What another rank gets has no gaps: where it has some, a copy waits, made beside it.
        const bool copied = waits.gaps && exchange_.crosses(r);
        route.saved += copied ? 0 : waits.saved;
        route.activation_excess += copied ? waits.memory : std::max<Bytes>(0, waits.memory - bytes);
      }
    }
  }

  std::vector<ProfiledStage> take_subjects() { return std::move(subjects_); }

 private:
  struct Waiting {
    Bytes memory = 0, saved = 0;
    bool gaps = false;
  };

  void run_on(const Stage& stage, const std::function<void()>& job) {
    model_.executor.run_on(stage.index() % model_.executor.ranks(), job);
  }

  void run_forward(const Stage& stage, const at::Tensor& target, const nn::Loss& loss) {
    ProfiledStage subject{.stage = &stage, .loss = &loss};
    for (const auto& input : stage.plan().inputs) {
      subject.inputs.push_back(known_.at(input));
      at::Tensor& value = subject.inputs.back().value;
      value = to_device(value, stage.device());
    }
    if (stage.is_last()) subject.target = to_device(target, stage.device());
    std::vector<StageValue> made;
    run_on(stage, [&] { made = learn(subject); });
    for (std::size_t i = 0; i < made.size(); ++i) known_[stage.plan().outputs[i]] = made[i];
    subjects_.push_back(std::move(subject));
  }

  void run_backward(ProfiledStage& subject, simulate::StageCost& cost) {
    const StagePlan& plan = subject.stage->plan();
    for (const auto& output : plan.outputs) subject.output_gradients.push_back(gradients_[output]);
    HandedOn result;
    run_on(*subject.stage, [&] { result = measure_bytes(subject, cost); });
    for (std::size_t i = 0; i < plan.outputs.size(); ++i)
      waiting_[plan.outputs[i]] = {result.memory[i], result.saved[i], result.gaps[i]};
    for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
      add(plan.inputs[i], result.input_gradients[i]);
      if (exchange_.over_ranks())
        came_[{subject.stage->index(), plan.inputs[i]}] = result.input_gradients[i];
    }
  }

  void add(const ValueId& value, const at::Tensor& gradient) {
    at::Tensor& sum = gradients_[value];
    if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
  }

  PartitionedModel& model_;
  StageExchange& exchange_;
  simulate::Costs& costs_;
  std::vector<ProfiledStage> subjects_;
  std::map<ValueId, StageValue> known_;  // what stages made, on the CPU
  std::map<ValueId, Waiting> waiting_;   // and what it takes while it waits
  std::map<ValueId, at::Tensor> gradients_;
  std::map<std::pair<int, ValueId>, at::Tensor> came_;  // of each stage, for other ranks
};

}  // namespace

Pass ProfiledStage::fresh() const {
  Pass pass;
  for (const auto& input : inputs) {
    pass.inputs.push_back(input);
    pass.inputs.back().owned = true;
    if (input.value.defined()) pass.inputs.back().value = input.value.clone();
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

nn::Values ProfiledStage::backward(Pass& pass, const nn::Values& output_gradients) const {
  if (!stage->is_last()) return stage->backward(pass, output_gradients, {});
  if (whole_batch_loss()) return stage->backward(pass, output_gradients, {loss_gradient});
  at::Tensor value;
  {
    const at::AutoGradMode grad(true);
    value = loss->value(pass.model_outputs.at(0), target.defined() ? target.clone() : target);
  }
  return stage->backward_from_loss(pass, output_gradients, value, at::ones_like(value.detach()));
}

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  Bytes total = 0;
  for (const auto& tensor : tensors) {
    if (tensor.defined()) total += static_cast<Bytes>(tensor.nbytes());
  }
  return total;
}

std::vector<ProfiledStage> profile_memory(PartitionedModel& model, const nn::Values& piece,
                                          const nn::Loss& loss, StageExchange& exchange,
                                          simulate::Costs& costs) {
  MemoryProfile profile(model, exchange, costs);
  profile.run_forwards(piece, loss);
  profile.run_backwards();
  profile.describe_routes();
  return profile.take_subjects();
}

}  // namespace trestle::pipeline
