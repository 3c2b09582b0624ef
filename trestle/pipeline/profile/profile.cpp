#include "trestle/pipeline/profile/profile.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/median.h"
#include "trestle/base/stopwatch.h"
#include "trestle/device/device.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/threads.h"
#include "trestle/device/transfer.h"
#include "trestle/device/unlimited_budgets.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/gradient_keeper.h"
#include "trestle/pipeline/profile/profile_memory.h"
#include "trestle/pipeline/profile/profile_optimizer.h"
#include "trestle/pipeline/profile/profile_over_ranks.h"
#include "trestle/pipeline/transport/message_header.h"
#include "trestle/simulate/network.h"

namespace trestle::pipeline {
namespace {

constexpr double seconds_for_each_stage = 0.25;
constexpr int least_repeats = 3;

// Measures a whole-batch loss, on one copy of the micro-batch's output for each micro-batch. Its
// time is spread over all B.
void measure_loss(const ProfiledStage& profiled, std::size_t micro_batches,
                  simulate::StageCost& cost) {
  const Stage& stage = *profiled.stage;
  Pass pass = profiled.new_pass();
  profiled.forward(pass, GraphMode::None);
  const std::vector<at::Tensor> outputs(micro_batches, pass.model_outputs.at(0).detach());
  const at::Tensor targets = profiled.target.defined()
                                 ? at::cat(std::vector<at::Tensor>(micro_batches, profiled.target))
                                 : profiled.target;
  const at::AutoGradMode grad(true);
  double fastest = 0;
  for (int round = 0; round <= least_repeats; ++round) {
    const Bytes before = memory_usage(stage.device()).current;
    reset_peak_memory(stage.device());
    const Stopwatch watch;
    {
      nn::GradientSink sink(1);
      const at::Tensor whole = sink.begin(0, at::cat(outputs));
      profiled.loss->value(whole, targets).backward();
      device::synchronize(stage.device());
      cost.loss_kept = bytes_of({sink.gradient(0)});
    }
    const double took = watch.seconds();
    fastest = round < 2 ? took : std::min(fastest, took);
    // In a step the target is copied to the device during the loss.
    cost.loss_transient = std::max<Bytes>(
        0, memory_usage(stage.device()).peak - before - cost.loss_kept + bytes_of({targets}));
  }
  cost.output_kept += bytes_of({outputs[0]});
  if (nn::is_part_of_more(outputs[0]))  // a step keeps a copy of a view
    cost.saved += bytes_of({outputs[0]});
  cost.backward += fastest / static_cast<double>(micro_batches);
}

// The seconds of I and of W.
std::pair<double, double> time_split(const ProfiledStage& profiled, const Stopwatch& watch) {
  const Stage& stage = *profiled.stage;
  Pass pass = profiled.new_pass();
  profiled.forward(pass, GraphMode::Keep);
  const nn::Values gradients = profiled.gradients();
  device::synchronize(stage.device());
  const double begin = watch.seconds();
  profiled.backward(pass, gradients, BackwardPart::Inputs);
  device::synchronize(stage.device());
  const double middle = watch.seconds();
  stage.accumulate_weights(pass);
  device::synchronize(stage.device());
  return {middle - begin, watch.seconds() - middle};
}

// Measures times, while all other stages run too. The first round only warms up caches and
// allocators.
void measure_times(const ProfiledStage& profiled, BackwardPart part, simulate::StageCost& cost) {
  const Stage& stage = *profiled.stage;
  std::vector<double> without_graph, forward, backward, inputs, weights;
  const Stopwatch watch;
  for (int round = 0; round <= least_repeats || watch.seconds() < seconds_for_each_stage; ++round) {
    Pass without = profiled.new_pass();
    Pass pass = profiled.new_pass();
    device::synchronize(stage.device());
    const double start = watch.seconds();
    profiled.forward(without, GraphMode::Recompute);
    device::synchronize(stage.device());
    const double plain = watch.seconds();
    without = Pass();
    const double begin_forward = watch.seconds();
    const auto produced = profiled.forward(pass, GraphMode::Keep);
    device::synchronize(stage.device());
    const double middle = watch.seconds();
    const nn::Values gradients = profiled.gradients();
    device::synchronize(stage.device());
    const double ready = watch.seconds();
    profiled.backward(pass, gradients);
    device::synchronize(stage.device());
    const double end = watch.seconds();
    if (part == BackwardPart::Inputs) {
      const auto [input_grad, weight_grad] = time_split(profiled, watch);
      if (round > 0) inputs.push_back(input_grad);
      if (round > 0) weights.push_back(weight_grad);
    }
    if (round == 0) continue;
    without_graph.push_back(plain - start);
    forward.push_back(middle - begin_forward);
    backward.push_back(end - ready);
  }
  cost.forward_no_graph = median(without_graph);
  cost.forward = cost.recompute = median(forward);
  cost.backward = median(backward);
  cost.input_grad = inputs.empty() ? cost.backward / 2 : median(inputs);
  cost.weight_grad = weights.empty() ? cost.backward / 2 : median(weights);
}

void measure_speed_up(const ProfiledStage& profiled, int threads, simulate::StageCost& cost) {
  simulate::StageCost alone = cost;
  const DeviceThreads lent(profiled.stage->device(), threads);
  measure_times(profiled, BackwardPart::Whole, alone);
  cost.lent_speed_up = (cost.forward + cost.backward) / (alone.forward + alone.backward);
}

// A smaller micro-batch may need more memory than a larger one: libtorch may choose another kernel.
// So may lent threads: each thread of a convolution has its own scratch memory.
void raise_bytes(simulate::Costs& costs, const simulate::Costs& least) {
  using simulate::StageCost;
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    for (const auto bytes : {&StageCost::saved, &StageCost::kept_for_recompute,
                             &StageCost::recompute_excess, &StageCost::transient_forward,
                             &StageCost::transient_no_graph, &StageCost::transient_recompute,
                             &StageCost::transient_backward, &StageCost::transient_first_backward})
      costs.stages[s].*bytes = std::max(costs.stages[s].*bytes, least.stages[s].*bytes);
    for (const auto bytes : {&StageCost::kept_for_weights, &StageCost::transient_weight_grad,
                             &StageCost::transient_first_weight_grad})
      if (auto& own = costs.stages[s].*bytes)
        own = std::max(*own, (least.stages[s].*bytes).value_or(0));
  }
  for (std::size_t r = 0; r < costs.routes.size(); ++r)  // its graph may save less of a message
    costs.routes[r].saved = std::min(costs.routes[r].saved, least.routes[r].saved);
}

// The simulator counts on it, with room for a description.
static_assert(simulate::in_first_part_on_cpu + 1024 <= Bytes{most_first_part_bytes});

// Times one message between two devices of this process, as a channel copies it.
double time_copy(Bytes bytes, at::Device from, at::Device to) {
  const at::Tensor message =
      at::empty({bytes}, at::TensorOptions().device(from).dtype(at::kByte)).fill_(1);
  to_device(message, to);
  device::synchronize(to);
  const Stopwatch watch;
  to_device(message, to);
  device::synchronize(to);
  return watch.seconds();
}

void measure_routes(const PartitionedModel& model, simulate::Costs& costs) {
  const auto measure = [&](const schedule::Route& route, Bytes bytes, double& seconds) {
    if (!model.stages.has(route.from_stage) || !model.stages.has(route.to_stage)) return;
    const at::Device from = model.stages[route.from_stage].device();
    const at::Device to = model.stages[route.to_stage].device();
    if (from != to && bytes > 0) seconds = time_copy(bytes, from, to);
  };
  for (std::size_t r = 0; r < model.cut.routes.size(); ++r)
    measure(model.cut.routes[r], costs.routes[r].bytes, costs.routes[r].seconds);
  for (std::size_t i = 0; i < model.cut.ties.size(); ++i)
    measure(model.cut.ties[i].route, costs.ties[i].bytes, costs.ties[i].seconds);
}

// Which stages share a device, and whether one thread runs all ranks.
void describe_devices(const PartitionedModel& model, simulate::Costs& costs) {
  std::vector<at::Device> devices;
  for (const auto& stage : model.stages) {
    const auto found = std::find(devices.begin(), devices.end(), stage.device());
    costs.device_of_stage.push_back(static_cast<int>(found - devices.begin()));
    if (found == devices.end()) devices.push_back(stage.device());
  }
  if (model.executor.one_thread()) costs.concurrency = simulate::Concurrency::OneThread;
}

// All ranks at the same time, as in a step; the stages of one worker one after the other.
void measure_all_times(PartitionedModel& model, const std::vector<ProfiledStage>& stages_here,
                       BackwardPart part, StageExchange& exchange,
                       const StageOptimizerOptions& optimizer, simulate::Costs& costs) {
  const auto on_all = [&](const auto& measure_stage) {
    exchange.barrier();
    model.executor.run_on_all([&](int rank) {
      for (const ProfiledStage& profiled : stages_here) {
        const int stage = profiled.stage->index();
        if (!exchange.over_ranks() && stage % model.executor.ranks() != rank) continue;
        std::optional<DeviceThreads> threads;  // as in a step
        if (model.one_device_each)
          threads.emplace(profiled.stage->device(), model.executor.threads());
        measure_stage(profiled, costs.stages[static_cast<std::size_t>(stage)]);
      }
    });
  };
  on_all([&](const ProfiledStage& profiled, simulate::StageCost& cost) {
    measure_times(profiled, part, cost);
  });
  if (!optimizer.make) return;
  on_all([&](const ProfiledStage& profiled, simulate::StageCost& cost) {
    measure_optimizer(model, *profiled.stage, optimizer, cost);
  });
}

// Runs each stage once more. Its times were measured without the log's small cost.
void log_messages(PartitionedModel& model, const std::vector<ProfiledStage>& stages_here,
                  const StageExchange& exchange, MessageLog& log, simulate::Costs& costs) {
  costs.messages.resize(costs.stages.size());
  model.executor.run_on_all([&](int rank) {
    for (const ProfiledStage& profiled : stages_here) {
      const int stage = profiled.stage->index();
      if (!exchange.over_ranks() && stage % model.executor.ranks() != rank) continue;
      auto& messages = costs.messages[static_cast<std::size_t>(stage)];
      Pass pass = profiled.new_pass();
      log.start();
      profiled.forward(pass, GraphMode::Keep);
      messages.forward = layer_messages(log.take());
      const nn::Values gradients = profiled.gradients();
      log.start();
      profiled.backward(pass, gradients);
      messages.backward = layer_messages(log.take());
    }
  });
}

BackwardPart part_of(const ProfiledMiniBatch& batch) {
  return batch.splits_backward ? BackwardPart::Inputs : BackwardPart::Whole;
}

std::vector<ProfiledStage> measure_memory(PartitionedModel& model, const ProfiledMiniBatch& batch,
                                          const nn::Loss& loss, StageExchange& exchange,
                                          int lent_threads, simulate::Costs& costs) {
  const simulate::Costs empty = costs;
  const auto measure_more = [&](const nn::Values& micro_batch, int threads) {
    simulate::Costs other = empty;
    profile_memory(model, micro_batch, loss, exchange, other, part_of(batch), threads);
    raise_bytes(costs, other);
  };
  std::vector<ProfiledStage> stages_here =
      profile_memory(model, batch.micro_batches.front(), loss, exchange, costs, part_of(batch));
  const bool ragged = batch.sizes.back() != batch.sizes.front();
  if (ragged) measure_more(batch.micro_batches.back(), 0);
  if (lent_threads > 0) measure_more(batch.micro_batches.front(), lent_threads);
  if (lent_threads > 0 && ragged) measure_more(batch.micro_batches.back(), lent_threads);
  return stages_here;
}

}  // namespace

simulate::Costs profile_stages(PartitionedModel& model, const ProfiledMiniBatch& batch,
                               const nn::Loss& loss, StageExchange& exchange,
                               const StageOptimizerOptions& optimizer, int lent_threads,
                               MessageLog* log) {
  simulate::Costs costs;
  costs.stages.resize(model.cut.stages.size());
  costs.routes.resize(model.cut.routes.size());
  for (const StageTie& tie : model.cut.ties)
    costs.ties.push_back({.owner = tie.route.from_stage, .copy = tie.route.to_stage});
  costs.transfer_mode =
      exchange.over_ranks() ? simulate::TransferMode::Prefetch : simulate::TransferMode::Pull;
  if (!exchange.over_ranks()) describe_devices(model, costs);
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
  const std::vector<ProfiledStage> stages_here =
      measure_memory(model, batch, loss, exchange, lent_threads, costs);
  measure_routes(model, costs);
  if (exchange.over_ranks()) measure_routes_between_ranks(model, exchange, costs);
  measure_all_times(model, stages_here, part_of(batch), exchange, optimizer, costs);
  for (std::size_t s = 0; lent_threads > 0 && s < stages_here.size(); ++s) {
    model.executor.run_on(static_cast<int>(s) % model.executor.ranks(),
                          [&] { measure_speed_up(stages_here[s], lent_threads, costs.stages[s]); });
  }
  if (log) log_messages(model, stages_here, exchange, *log, costs);
  if (!stages_here.empty() && stages_here.back().whole_batch_loss()) {
    model.executor.run_on(model.executor.ranks() - 1, [&] {
      std::optional<DeviceThreads> threads;  // as in a step
      if (model.one_device_each)
        threads.emplace(stages_here.back().stage->device(), model.executor.threads());
      measure_loss(stages_here.back(), batch.micro_batches.size(), costs.stages.back());
    });
  }
  return exchange.over_ranks() ? gather_costs(model, exchange, costs) : costs;
}

void put_backwards_into_input_grads(simulate::Costs& costs) {
  for (simulate::StageCost& cost : costs.stages) {
    cost.input_grad = cost.backward;
    cost.weight_grad = 0;
    cost.kept_for_weights = cost.transient_weight_grad = cost.transient_first_weight_grad = 0;
  }
}

}  // namespace trestle::pipeline
