#include "trestle/pipeline/profile.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/median.h"
#include "trestle/base/stopwatch.h"
#include "trestle/device/device.h"
#include "trestle/device/event.h"
#include "trestle/device/threads.h"
#include "trestle/device/transfer.h"
#include "trestle/device/unlimited_budgets.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/gradient_keeper.h"
#include "trestle/pipeline/profile_memory.h"
#include "trestle/pipeline/profile_over_ranks.h"

namespace trestle::pipeline {
namespace {

constexpr double seconds_for_each_stage = 0.25;
constexpr int least_repeats = 3;

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
    const Bytes before = memory_usage(stage.device()).current;
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
    cost.loss_transient = std::max<Bytes>(
        0, memory_usage(stage.device()).peak - before - cost.loss_kept + bytes_of({targets}));
  }
  cost.output_kept += bytes_of({outputs[0]});
  if (nn::is_part_of_more(outputs[0]))  // kept as a copy, beside the graph's
    cost.saved += bytes_of({outputs[0]});
  cost.backward += fastest / static_cast<double>(micro_batches);
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
    const nn::Values gradients = subject.gradients();
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

void measure_speed_up(const Subject& subject, int threads, simulate::StageCost& cost) {
  simulate::StageCost alone = cost;
  const DeviceThreads lent(subject.stage->device(), threads);
  measure_times(subject, alone);
  cost.lent_speed_up = (cost.forward + cost.backward) / (alone.forward + alone.backward);
}

// A smaller piece may need more than a larger one: another kernel serves it.
void raise_bytes(simulate::Costs& costs, const simulate::Costs& least) {
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
    if (!model.stages.has(model.cut.routes[r].from_stage) ||
        !model.stages.has(model.cut.routes[r].to_stage))
      continue;
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
    costs.concurrency = simulate::Concurrency::OneThread;
}

// All at the same time, as in a step; of the stages of one worker one after the other.
void measure_all_times(PartitionedModel& model, const std::vector<Subject>& subjects, Relay& relay,
                       simulate::Costs& costs) {
  relay.meet();
  model.executor.run_on_all([&](int rank) {
    for (const Subject& subject : subjects) {
      const int stage = subject.stage->index();
      if (!relay.over_ranks() && stage % model.executor.ranks() != rank) continue;
      std::optional<DeviceThreads> threads;  // as in a step
      if (model.one_device_each) threads.emplace(subject.stage->device(), model.executor.threads());
      measure_times(subject, costs.stages[static_cast<std::size_t>(stage)]);
    }
  });
}

std::vector<Subject> measure_memory(PartitionedModel& model, const ProfilePieces& batch,
                                    const nn::Loss& loss, Relay& relay, simulate::Costs& costs) {
  const simulate::Costs empty = costs;
  std::vector<Subject> subjects = profile_memory(model, batch.pieces.front(), loss, relay, costs);
  if (batch.sizes.back() != batch.sizes.front()) {
    simulate::Costs smallest = empty;
    profile_memory(model, batch.pieces.back(), loss, relay, smallest);
    raise_bytes(costs, smallest);
  }
  return subjects;
}

}  // namespace

simulate::Costs profile_stages(PartitionedModel& model, const ProfilePieces& batch,
                               const nn::Loss& loss, Relay& relay, int lent_threads) {
  simulate::Costs costs;
  costs.stages.resize(model.cut.stages.size());
  costs.routes.resize(model.cut.routes.size());
  costs.transfer_mode =
      relay.over_ranks() ? simulate::TransferMode::Prefetch : simulate::TransferMode::Pull;
  if (!relay.over_ranks()) describe_devices(model, costs);
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
  const nn::GradientKeeper keep_gradients(parameters);
  const std::vector<Subject> subjects = measure_memory(model, batch, loss, relay, costs);
  measure_routes(model, costs);
  if (relay.over_ranks()) measure_routes_between_ranks(model, relay, costs);
  measure_all_times(model, subjects, relay, costs);
  for (std::size_t s = 0; lent_threads > 0 && s < subjects.size(); ++s) {
    model.executor.run_on(static_cast<int>(s) % model.executor.ranks(),
                          [&] { measure_speed_up(subjects[s], lent_threads, costs.stages[s]); });
  }
  if (!subjects.empty() && subjects.back().whole_batch_loss()) {
    model.executor.run_on(model.executor.ranks() - 1, [&] {
      measure_loss(subjects.back(), batch.pieces.size(), costs.stages.back());
    });
  }
  return relay.over_ranks() ? gather_costs(model, relay, costs) : costs;
}

}  // namespace trestle::pipeline
