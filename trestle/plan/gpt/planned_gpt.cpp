#include "trestle/plan/gpt/planned_gpt.h"

#include <algorithm>
#include <cstddef>

#include "trestle/base/text.h"
#include "trestle/plan/gpt/equal_layers.h"
#include "trestle/plan/gpt/layer_times.h"
#include "trestle/plan/transformer_memory.h"

namespace trestle::plan {
namespace {

constexpr double weight_bytes = 2, gradient_bytes = 2;

LayerSplit split_of(const Strategy& strategy) {
  return {.micro_batch = static_cast<double>(strategy.micro_batch),
          .tensor = strategy.tensor,
          .sequence_parallel = strategy.sequence_parallel,
          .recompute = strategy.recompute};
}

// Those of a block on one tensor rank: matrices and their first biases are split, norms and the
// other biases are whole.
double parameters_of_block(const GptModel& model, int tensor) {
  const auto h = static_cast<double>(model.hidden);
  return (12 * h * h + 7 * h) / tensor + 6 * h;
}

// Ranks may have shards of different sizes: the largest.
double table_parameters(const GptModel& model, int tensor) {
  const std::int64_t rows = (model.vocabulary + tensor - 1) / tensor;
  return static_cast<double>(rows * model.hidden);
}

PublishedForm form_of(const Strategy& strategy, BlockRecompute recompute) {
  using Form = PublishedForm;
  const bool shards = strategy.sequence_parallel;
  switch (recompute) {
    case BlockRecompute::None:
      return shards ? Form::TensorSequence : Form::Tensor;
    case BlockRecompute::Selective:
      return shards ? Form::TensorSequenceSelective : Form::TensorSelective;
    case BlockRecompute::All:
      break;
  }
  return shards ? Form::WholeSplit : Form::Whole;
}

PublishedSizes published_sizes(const GptModel& model, const Strategy& strategy) {
  return {.tokens = static_cast<double>(model.sequence),
          .batch = static_cast<double>(strategy.micro_batch),
          .width = static_cast<double>(model.hidden),
          .heads = static_cast<double>(model.heads),
          .tensor = static_cast<double>(strategy.tensor)};
}

// The bytes that a block keeps of one micro-batch.
double kept_bytes(const GptModel& model, const Strategy& strategy) {
  return published_activation_bytes(form_of(strategy, strategy.recompute),
                                    published_sizes(model, strategy));
}

// The bytes beyond that which the backward of a block holds.
double recomputed_bytes(const GptModel& model, const Strategy& strategy) {
  return published_activation_bytes(form_of(strategy, BlockRecompute::None),
                                    published_sizes(model, strategy)) -
         kept_bytes(model, strategy);
}

// The micro-batches whose activations a stage holds at its peak. Interleaved: in units of all its
// chunks (Korthikanti et al. 2022, section 4.2.3).
double in_flight(const Strategy& strategy, std::int64_t micro_batches, int stage) {
  const auto n = static_cast<double>(micro_batches);
  if (strategy.schedule == "gpipe") return n;
  const double later = strategy.pipeline - stage - 1;
  if (strategy.chunks == 1) return std::min(n, later + 1);
  return std::min(n,
                  (2 * later + (strategy.chunks - 1.0) * strategy.pipeline + 1) / strategy.chunks);
}

double message_bytes(const GptModel& model, const Strategy& strategy) {
  return 2.0 * strategy.micro_batch * static_cast<double>(model.sequence * model.hidden);
}

struct DataTimes {
  double forward = 0, backward = 0;  // of each micro-batch
  double reduce = 0;                 // of each step
  double update = 0;                 // after the optimizer's step
};

// The data group's messages of one stage. None of them is hidden behind computation.
DataTimes data_times(const GptModel& model, const Strategy& strategy, const Machine& machine,
                     int layers, double parameters) {
  DataTimes times;
  if (strategy.data == 1) return times;
  const GroupPlace place = place_of_data_group(strategy, machine);
  const double bytes = weight_bytes * parameters;
  if (strategy.level <= 1) {
    times.reduce = all_reduce_seconds(machine, bytes, place);
    if (strategy.level == 1) times.update = times.reduce /= 2;
    return times;
  }
  if (strategy.level == 2) {
    times.backward = times.update = gather_seconds(machine, bytes, place);
    return times;
  }
  const double block = parameters_of_block(model, strategy.tensor);
  const double around = parameters - layers * block;  // tables
  times.forward = layers * gather_seconds(machine, weight_bytes * block, place) +
                  (around > 0 ? gather_seconds(machine, weight_bytes * around, place) : 0);
  times.backward = 2 * times.forward;
  return times;
}

}  // namespace

GroupPlace place_of_tensor_group(const Strategy& strategy, const Machine& machine) {
  return {.ranks = strategy.tensor,
          .per_node = std::min(strategy.tensor, machine.devices_per_node),
          .sharing = std::max(machine.devices_per_node / strategy.tensor, 1)};
}

GroupPlace place_of_data_group(const Strategy& strategy, const Machine& machine) {
  const int room = std::max(machine.devices_per_node / strategy.tensor, 1);
  const int per_node = std::min(strategy.data, room);
  return {.ranks = strategy.data,
          .per_node = per_node,
          .sharing = std::max(machine.devices_per_node / per_node, 1)};
}

Reach reach_of_stages(const Strategy& strategy, const Machine& machine) {
  return 2 * strategy.tensor * strategy.data <= machine.devices_per_node ? Reach::Inside
                                                                         : Reach::Between;
}

std::vector<int> layers_of_stages(const GptModel& model, const Strategy& strategy,
                                  const Machine& machine) {
  const auto stages = static_cast<std::size_t>(strategy.pipeline);
  if (model.layers % strategy.pipeline == 0)
    return std::vector<int>(stages, static_cast<int>(model.layers / strategy.pipeline));
  const LayerSplit split = split_of(strategy);
  return cut_equal_layers(
      model.layers, strategy.pipeline,
      {.layer = block_seconds(model, split, machine).sum(),
       .first = strategy.pipeline > 1 ? embedding_seconds(model, split, machine).sum() : 0,
       .last = head_seconds(model, split, machine).sum()});
}

std::vector<double> parameters_of_stages(const GptModel& model, const Strategy& strategy,
                                         const std::vector<int>& layers) {
  const double block = parameters_of_block(model, strategy.tensor);
  const double table = table_parameters(model, strategy.tensor);
  std::vector<double> parameters;
  for (const int count : layers) parameters.push_back(count * block);
  parameters.front() += table + static_cast<double>(model.sequence * model.hidden);
  if (!model.tied_head || layers.size() > 1) parameters.back() += table;
  return parameters;
}

double PlannedGpt::flops(std::int64_t batch) const {
  return model_flops(model_, static_cast<double>(batch));
}

std::string PlannedGpt::flops_formula() const {
  return "72 B L s h^2 (1 + s / (6 h) + V / (12 L h))";
}

std::string PlannedGpt::sources(const Machine& machine) const {
  return text(
      "Times are simulated, bytes are a formula's, both assumed for this machine: constants ",
      machine.transformer.matrix_efficiency.from, "; between nodes ",
      format_bandwidth(machine.between.bandwidth.value), ", ",
      to_string(machine.between.bandwidth.origin), ". The range: ", machine.transformer.spread.from,
      ". MFU is ", flops_formula(), " over step x devices x peak.");
}

std::vector<BrokenRule> PlannedGpt::broken_rules(const Strategy& strategy) const {
  std::vector<BrokenRule> broken;
  const int t = strategy.tensor;
  if (model_.heads % t != 0)
    broken.push_back(
        {"heads", text(model_.heads, " heads do not divide over ", t, " tensor ranks")});
  if (t > machine_.devices_per_node || machine_.devices_per_node % t != 0)
    broken.push_back({"node", text(t, " tensor ranks do not divide a node of ",
                                   machine_.devices_per_node, " devices")});
  if (strategy.sequence_parallel && model_.sequence % t != 0)
    broken.push_back(
        {"tokens", text(model_.sequence, " tokens do not divide over ", t, " tensor ranks")});
  return broken;
}

std::vector<Ledger> PlannedGpt::ledgers(const Strategy& strategy,
                                        std::int64_t micro_batches) const {
  const std::vector<int> layers = layers_of_stages(model_, strategy, machine_);
  const std::vector<double> parameters = parameters_of_stages(model_, strategy, layers);
  const double kept = kept_bytes(model_, strategy), recomputed = recomputed_bytes(model_, strategy);
  const double message =
      message_bytes(model_, strategy) / (strategy.sequence_parallel ? strategy.tensor : 1);
  std::vector<Ledger> ledgers;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    Ledger ledger{.stage = static_cast<int>(s)};
    set_states(&ledger, parameters[s], strategy.level, strategy.data);
    ledger.activations = in_flight(strategy, micro_batches, ledger.stage) * layers[s] * kept;
    ledger.transient = recomputed;
    if (s + 1 == layers.size()) {
      // The scores in bf16, a copy in fp32 and their gradient. No block is recomputed meanwhile.
      const double logits = 10.0 * strategy.micro_batch *
                            static_cast<double>(model_.sequence * model_.vocabulary) /
                            strategy.tensor;
      (logits > recomputed ? ledger.logits : ledger.transient) = std::max(logits, recomputed);
      if (logits > recomputed) ledger.transient = 0;
    }
    const double block = parameters_of_block(model_, strategy.tensor);
    // Level 3 holds two gathered blocks, or a table, and level 2 and 3 a block's whole gradients.
    if (strategy.data > 1 && strategy.level == 3)
      ledger.gathered =
          std::max(2 * weight_bytes * block, weight_bytes * (parameters[s] - layers[s] * block));
    if (strategy.data > 1 && strategy.level >= 2) ledger.gathered += gradient_bytes * block;
    if (strategy.pipeline > 1) ledger.messages = 4 * message;
    ledger.reserved = machine_.reserved.value;
    ledgers.push_back(ledger);
  }
  return ledgers;
}

StrategyCosts PlannedGpt::costs(const Strategy& strategy, std::int64_t micro_batches) const {
  const std::vector<int> layers = layers_of_stages(model_, strategy, machine_);
  const std::vector<double> parameters = parameters_of_stages(model_, strategy, layers);
  const LayerSplit split = split_of(strategy);
  const PassSeconds block = block_seconds(model_, split, machine_);
  const auto n = static_cast<double>(micro_batches);
  const std::vector<Ledger> bytes = ledgers(strategy, micro_batches);
  StrategyCosts costs;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    PassSeconds pass{.forward = layers[s] * block.forward,
                     .backward = layers[s] * block.backward,
                     .forward_messages = layers[s] * block.forward_messages,
                     .backward_messages = layers[s] * block.backward_messages};
    const auto add = [&pass](const PassSeconds& more) {
      pass.forward += more.forward;
      pass.backward += more.backward;
      pass.forward_messages += more.forward_messages;
      pass.backward_messages += more.backward_messages;
    };
    if (s == 0) add(embedding_seconds(model_, split, machine_));
    if (s + 1 == layers.size()) add(head_seconds(model_, split, machine_));
    const DataTimes data = data_times(model_, strategy, machine_, layers[s], parameters[s]);
    simulate::StageCost stage;
    stage.forward = stage.forward_no_graph = stage.recompute = pass.forward + data.forward;
    stage.backward = pass.backward + data.backward;
    stage.input_grad = stage.weight_grad = stage.backward / 2;
    stage.norm = machine_.transformer.step_seconds.value;
    stage.step = machine_.transformer.optimizer_bytes.value * parameters[s] /
                     (strategy.level >= 1 ? strategy.data : 1) / machine_.memory_bandwidth.value +
                 data.update;
    stage.reduce = data.reduce;
    const Ledger& ledger = bytes[s];
    const auto whole = [](double amount) {
      constexpr double most = 1e14;  // the simulator adds these up
      return static_cast<Bytes>(std::min(amount, most));
    };
    stage.persistent = whole(ledger.parameters + ledger.optimizer + ledger.reserved);
    stage.gradients = whole(ledger.gradients);
    stage.saved = whole(layers[s] * kept_bytes(model_, strategy));
    stage.transient_forward = stage.transient_no_graph = whole(ledger.gathered);
    stage.transient_backward = whole(ledger.transient + ledger.logits + ledger.gathered);
    costs.costs.stages.push_back(stage);
    costs.tensor_messages.push_back(n * (pass.forward_messages + pass.backward_messages));
    costs.data_messages.push_back(n * (data.forward + data.backward) + data.reduce + data.update);
    costs.update_messages.push_back(data.update);
  }
  // Each tensor rank sends its share between nodes, and the receivers gather it.
  const Reach reach = reach_of_stages(strategy, machine_);
  const double bytes_of_message =
      message_bytes(model_, strategy) / (reach == Reach::Between ? strategy.tensor : 1);
  for (std::size_t s = 1; s < layers.size(); ++s)
    costs.costs.routes.push_back(
        {.seconds = message_seconds(machine_, bytes_of_message, reach),
         .bytes = static_cast<Bytes>(std::min(message_bytes(model_, strategy), 1e14) /
                                     (strategy.sequence_parallel ? strategy.tensor : 1))});
  return costs;
}

}  // namespace trestle::plan
