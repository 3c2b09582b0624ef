#include "trestle/pipeline/profile.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <functional>
#include <map>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/device/device.h"
#include "trestle/device/event.h"
#include "trestle/device/transfer.h"
#include "trestle/device/unlimited_budgets.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/pipeline/micro_batch.h"

namespace trestle::pipeline {
namespace {

constexpr double seconds_for_each_stage = 0.25;
constexpr int least_repeats = 3;
constexpr Bytes number_bytes = sizeof(double);  // of a loss, at most

// The parameters' own gradients, set aside; while it lives they have none, as before a step's first
// backward, until one makes them.
class GradientKeeper {
 public:
  explicit GradientKeeper(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (auto& parameter : parameters_) {
      kept_.push_back(parameter.grad());
      parameter.mutable_grad() = at::Tensor();
    }
  }
  ~GradientKeeper() {
    // Backwards: of a parameter that is listed twice the first entry has its gradient.
    for (std::size_t i = parameters_.size(); i-- > 0;) parameters_[i].mutable_grad() = kept_[i];
  }
  GradientKeeper(const GradientKeeper&) = delete;
  GradientKeeper& operator=(const GradientKeeper&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> kept_;
};

// One stage being profiled: what reaches it, and how to run its F and B once.
struct Subject {
  const Stage* stage = nullptr;
  std::vector<StageValue> inputs = {};
  // What comes back, as the stages behind make it: how a gradient lies in memory decides whether a
  // backward has to copy it. On the CPU; None where none comes.
  nn::Values output_gradients = {};
  const nn::Loss* loss = nullptr;  // last stage only
  at::Tensor target = {};
  at::Tensor loss_gradient = {};  // of a whole-batch loss: the model's output's, on the device

  // A pass whose inputs have just arrived: the stage owns them, as it does behind a transfer.
  Pass fresh() const {
    Pass pass;
    for (const auto& input : inputs) {
      pass.inputs.push_back(input);
      pass.inputs.back().owned = true;
      if (input.value.defined()) pass.inputs.back().value = input.value.clone();
    }
    return pass;
  }

  std::vector<StageValue> forward(Pass& pass, GraphMode mode) const {
    nn::BufferCopies copies;
    return forward(pass, mode, copies);
  }
  std::vector<StageValue> forward(Pass& pass, GraphMode mode, nn::BufferCopies& copies) const {
    return stage->forward(pass, mode, copies, {});
  }

  bool whole_batch_loss() const {
    return stage->is_last() && loss->kind == nn::Loss::Kind::WholeBatch;
  }

  nn::Values backward(Pass& pass, const nn::Values& output_gradients) const {
    if (!stage->is_last()) return stage->backward(pass, output_gradients, {});
    if (whole_batch_loss()) {  // taken once a step, by measure_loss()
      return stage->backward(pass, output_gradients, {loss_gradient});
    }
    at::Tensor value;
    {
      const at::AutoGradMode grad(true);
      value = loss->value(pass.model_outputs.at(0), target.defined() ? target.clone() : target);
    }
    return stage->backward_from_loss(pass, output_gradients, value, at::ones_like(value.detach()));
  }
};

nn::Values on_device(const nn::Values& values, at::Device device) {
  nn::Values result;
  for (const auto& value : values) result.push_back(to_device(value, device));
  return result;
}

at::Tensor on_cpu(const at::Tensor& value) {
  return value.defined() ? to_device(value, at::kCPU).clone() : value;
}

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  Bytes total = 0;
  for (const auto& tensor : tensors) {
    if (tensor.defined()) total += static_cast<Bytes>(tensor.nbytes());
  }
  return total;
}

Bytes current(const Stage& stage) { return memory_usage(stage.device()).current; }
Bytes peak(const Stage& stage) { return memory_usage(stage.device()).peak; }

// What a stage hands on, on the CPU, and the memory behind it.
struct HandedOn {
  std::vector<StageValue> values;
  std::vector<Bytes> memory;  // of each value while it waits to be taken
  std::vector<Bytes> saved;   // of that, what the stage's graph keeps too
  nn::Values input_gradients;
};

// Lets go of the stage's outputs one after the other: what that does not free the graph has saved.
HandedOn hand_on(const Stage& stage, std::vector<StageValue> produced) {
  HandedOn result;
  for (auto& made : produced) {
    const Bytes memory = nn::memory_of(made.value);
    StageValue copy = made;
    copy.value = on_cpu(made.value);
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
Bytes measure_backward(const Subject& subject, Pass& pass, nn::Values* input_gradients) {
  const Stage& stage = *subject.stage;
  const Bytes before = current(stage);
  const nn::Values gradients = on_device(subject.output_gradients, stage.device());
  reset_peak_memory(stage.device());
  *input_gradients = subject.backward(pass, gradients);
  const Bytes loss = stage.is_last() ? number_bytes : 0;  // a step notes it down
  return std::max(peak(stage) - before, receiving(stage, gradients)) + loss;
}

// One F with its graph and one B, watched.
HandedOn measure_once(const Subject& subject, simulate::StageCost& cost) {
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
void measure_recompute(const Subject& subject, simulate::StageCost& cost) {
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
HandedOn measure_bytes(const Subject& subject, simulate::StageCost& cost) {
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
std::vector<StageValue> learn(Subject& subject) {
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

// A loss over the whole batch, on as many copies of the micro-batch's output as the batch has
// micro-batches. Its time is spread over their Bs.
void measure_loss(const Subject& subject, std::size_t micro_batches, simulate::StageCost& cost) {
  const Stage& stage = *subject.stage;
  Pass pass = subject.fresh();
  subject.forward(pass, GraphMode::None);
  const std::vector<at::Tensor> outputs(micro_batches, pass.model_outputs.at(0).detach());
  const at::Tensor targets = subject.target.defined()
                                 ? at::cat(std::vector<at::Tensor>(micro_batches, subject.target))
                                 : subject.target;
  const at::AutoGradMode grad(true);
  double fastest = 0;
  for (int round = 0; round <= least_repeats; ++round) {
    const Bytes before = current(stage);
    reset_peak_memory(stage.device());
    const Stopwatch watch;
    {
      nn::GradientSink sink(1);
      const at::Tensor whole = sink.begin(0, at::cat(outputs));
      subject.loss->value(whole, targets).backward();
      device::synchronize(stage.device());
      cost.loss_kept = bytes_of({sink.gradient(0)});
    }
    const double took = watch.seconds();
    fastest = round < 2 ? took : std::min(fastest, took);
    // In a step the target comes to the device meanwhile.
    cost.loss_transient =
        std::max<Bytes>(0, peak(stage) - before - cost.loss_kept + bytes_of({targets}));
  }
  cost.output_kept += bytes_of({outputs[0]});
  if (nn::memory_of(outputs[0]) > bytes_of({outputs[0]}))  // kept as a copy, beside the graph's
    cost.saved += bytes_of({outputs[0]});
  cost.backward += fastest / static_cast<double>(micro_batches);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Times, while every other stage is at work too. The first round warms caches and allocators up and
// does not count.
void measure_times(const Subject& subject, simulate::StageCost& cost) {
  const Stage& stage = *subject.stage;
  std::vector<double> without_graph, forward, backward;
  const Stopwatch watch;
  for (int round = 0; round <= least_repeats || watch.seconds() < seconds_for_each_stage; ++round) {
    Pass without = subject.fresh();
    Pass pass = subject.fresh();
    device::synchronize(stage.device());
    const double start = watch.seconds();
    subject.forward(without, GraphMode::Recompute);
    device::synchronize(stage.device());
    const double plain = watch.seconds();
    without = Pass();
    const double begin_forward = watch.seconds();
    const auto produced = subject.forward(pass, GraphMode::Keep);
    device::synchronize(stage.device());
    const double middle = watch.seconds();
    const nn::Values gradients = on_device(subject.output_gradients, stage.device());
    device::synchronize(stage.device());
    const double ready = watch.seconds();
    subject.backward(pass, gradients);
    device::synchronize(stage.device());
    const double end = watch.seconds();
    if (round == 0) continue;
    without_graph.push_back(plain - start);
    forward.push_back(middle - begin_forward);
    backward.push_back(end - ready);
  }
  cost.forward_no_graph = median(without_graph);
  cost.forward = cost.recompute = median(forward);
  cost.backward = median(backward);
  cost.input_grad = cost.weight_grad = cost.backward / 2;
}

// Forwards through all stages and backwards through them again, measuring bytes. `piece`: the inputs
// of one micro-batch, and its target.
std::vector<Subject> trace(PartitionedModel& model, const nn::Values& piece, const nn::Loss& loss,
                           simulate::Costs& costs) {
  std::map<ValueId, StageValue> known;
  for (std::size_t i = 0; i + 1 < piece.size(); ++i)
    known[{nn::model_input, static_cast<int>(i)}].value = piece[i];
  const auto run_on = [&](std::size_t stage, const std::function<void()>& job) {
    model.executor.run_on(static_cast<int>(stage) % model.executor.ranks(), job);
  };
  std::vector<Subject> subjects;
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const Stage& stage = model.stages[s];
    Subject subject{.stage = &stage, .loss = &loss};
    for (const auto& input : stage.plan().inputs) {
      subject.inputs.push_back(known.at(input));
      at::Tensor& value = subject.inputs.back().value;
      value = to_device(value, stage.device());
    }
    if (stage.is_last()) subject.target = to_device(piece.back(), stage.device());
    std::vector<StageValue> made;
    run_on(s, [&] { made = learn(subject); });
    for (std::size_t i = 0; i < made.size(); ++i) known[stage.plan().outputs[i]] = made[i];
    subjects.push_back(std::move(subject));
  }
  std::map<ValueId, at::Tensor> gradients;
  std::map<ValueId, Bytes> memory, saved;
  for (std::size_t s = subjects.size(); s-- > 0;) {
    const StagePlan& plan = subjects[s].stage->plan();
    for (const auto& output : plan.outputs)
      subjects[s].output_gradients.push_back(gradients[output]);
    HandedOn result;
    run_on(s, [&] { result = measure_bytes(subjects[s], costs.stages[s]); });
    for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
      memory[plan.outputs[i]] = result.memory[i];
      saved[plan.outputs[i]] = result.saved[i];
    }
    for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
      const at::Tensor& came = result.input_gradients[i];
      at::Tensor& sum = gradients[plan.inputs[i]];
      if (came.defined()) sum = sum.defined() ? sum + came : came;
    }
  }
  for (std::size_t r = 0; r < model.cut.routes.size(); ++r) {
    simulate::RouteCost& route = costs.routes[r];
    for (const auto& value : model.cut.route_values[r]) {
      const Bytes bytes = bytes_of({known.at(value).value});
      route.bytes += bytes;
      route.saved += saved.at(value);
      route.activation_excess += std::max<Bytes>(0, memory.at(value) - bytes);
    }
  }
  return subjects;
}

// A smaller piece may need more than a larger one: another kernel serves it.
void raise_bytes(simulate::Costs& costs, const simulate::Costs& least) {
  using simulate::RouteCost;
  using simulate::StageCost;
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    for (const auto bytes : {&StageCost::saved, &StageCost::kept_for_recompute,
                             &StageCost::recompute_excess, &StageCost::transient_forward,
                             &StageCost::transient_no_graph, &StageCost::transient_recompute,
                             &StageCost::transient_backward, &StageCost::transient_first_backward})
      costs.stages[s].*bytes = std::max(costs.stages[s].*bytes, least.stages[s].*bytes);
  }
  for (std::size_t r = 0; r < costs.routes.size(); ++r)  // its graph may keep less of a message
    costs.routes[r].saved = std::min(costs.routes[r].saved, least.routes[r].saved);
}

// Copies one message of each route between its devices, as the channels will.
void measure_routes(const PartitionedModel& model, simulate::Costs& costs) {
  for (std::size_t r = 0; r < model.cut.routes.size(); ++r) {
    const at::Device from = model.stages[model.cut.routes[r].from_stage].device();
    const at::Device to = model.stages[model.cut.routes[r].to_stage].device();
    if (from == to || costs.routes[r].bytes == 0) continue;
    const at::Tensor message =
        at::empty({costs.routes[r].bytes}, at::TensorOptions().device(from).dtype(at::kByte))
            .fill_(1);
    to_device(message, to);
    device::synchronize(to);
    const Stopwatch watch;
    to_device(message, to);
    device::synchronize(to);
    costs.routes[r].seconds = watch.seconds();
  }
}

// Which stages share a device, and whether one thread of control walks them all (see Executor).
void describe_devices(const PartitionedModel& model, simulate::Costs& costs) {
  std::vector<at::Device> devices;
  for (const auto& stage : model.stages) {
    const auto found = std::find(devices.begin(), devices.end(), stage.device());
    costs.device_of_stage.push_back(static_cast<int>(found - devices.begin()));
    if (found == devices.end()) devices.push_back(stage.device());
  }
  if (std::all_of(devices.begin(), devices.end(), [](auto device) { return device.is_cpu(); }))
    costs.control = simulate::Control::OneThread;
}

}  // namespace

simulate::Costs profile_stages(PartitionedModel& model, const std::vector<nn::Values>& pieces,
                               const nn::Loss& loss) {
  simulate::Costs costs;
  costs.stages.resize(model.stages.size());
  costs.routes.resize(model.cut.routes.size());
  costs.transport = simulate::Transport::Pull;
  describe_devices(model, costs);
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<at::Device> devices;
  for (const auto& stage : model.stages) {
    devices.push_back(stage.device());
    for (auto& parameter : stage.parameters()) parameters.push_back(parameter);
    for (auto& buffer : stage.buffers()) buffers.push_back(buffer);
  }
  costs.gradients_at_start =
      std::any_of(parameters.begin(), parameters.end(),
                  [](const at::Tensor& parameter) { return parameter.grad().defined(); });
  const nn::BufferKeeper keep_buffers(buffers);
  const UnlimitedBudgets no_budgets(devices);
  const GradientKeeper keep_gradients(parameters);
  const simulate::Costs empty = costs;
  const std::vector<Subject> subjects = trace(model, pieces.front(), loss, costs);
  if (sample_count(pieces.back()) != sample_count(pieces.front())) {
    simulate::Costs smallest = empty;
    trace(model, pieces.back(), loss, smallest);
    raise_bytes(costs, smallest);
  }
  measure_routes(model, costs);
  model.executor.run_on_all([&](int rank) {
    for (std::size_t s = rank; s < subjects.size(); s += model.executor.ranks())
      measure_times(subjects[s], costs.stages[s]);
  });
  if (const Subject& last = subjects.back(); last.whole_batch_loss()) {
    model.executor.run_on(model.executor.ranks() - 1,
                          [&] { measure_loss(last, pieces.size(), costs.stages.back()); });
  }
  return costs;
}

}  // namespace trestle::pipeline
