#include "trestle/plan/gpt/planned_gpt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>

#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/plan/gpt/equal_layers.h"
#include "trestle/plan/gpt/gpt_block.h"
#include "trestle/plan/gpt/known_models.h"
#include "trestle/plan/gpt/layer_times.h"
#include "trestle/plan/gpt/sent_bytes.h"

namespace trestle::plan {
namespace {

constexpr double weight_bytes = 2, gradient_bytes = 2;

LayerSplit split_of(const Strategy& strategy, BlockRecompute recompute) {
  return {.micro_batch = static_cast<double>(strategy.micro_batch),
          .tensor = strategy.tensor,
          .sequence_parallel = strategy.sequence_parallel,
          .recompute = recompute};
}

bool is_fp32(const Strategy& strategy) { return strategy.precision == Precision::Fp32; }

// How much larger than in 16 bits activations, messages and gathered parameters are.
double size_of(const Strategy& strategy) { return is_fp32(strategy) ? 2 : 1; }

// Each byte of the formulas is two bytes.
Machine machine_in_fp32(Machine machine) {
  machine.peak = *machine.peak_fp32;
  for (Figure* figure :
       {&machine.memory_bandwidth, &machine.inside.bandwidth, &machine.between.bandwidth})
    figure->value /= 2;
  if (machine.host) machine.host->bandwidth.value /= 2;
  for (CollectiveTable& table : machine.all_reduce)
    for (double& bytes : table.bytes) bytes /= 2;
  machine.blocks.clear();  // their times are those of 16 bits
  return machine;
}

// The bytes that blocks keep of one micro-batch.
struct KeptBytes {
  double whole = 0;       // of a block that is not recomputed
  double recomputed = 0;  // of one that is

  // All blocks of a stage.
  double of_stage(const Strategy& strategy, int layers) const {
    const int again = recomputed_blocks(strategy, layers);
    return again * recomputed + (layers - again) * whole;
  }
};

KeptBytes kept_bytes(const GptModel& model, const Strategy& strategy) {
  const auto bytes = [&](BlockRecompute recompute) {
    return size_of(strategy) * activation_bytes(model, split_of(strategy, recompute));
  };
  return {.whole = bytes(BlockRecompute::None), .recomputed = bytes(strategy.recompute)};
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

// A stage between the first and the last one with the layers of the stage before it.
bool is_as_before(const std::vector<int>& layers, std::size_t stage) {
  return stage > 1 && stage + 1 < layers.size() && layers[stage] == layers[stage - 1];
}

// The parameters of one device.
struct StageParameters {
  double all = 0;
  double block = 0;  // of one block
};

struct DataTimes {
  double forward = 0, backward = 0;  // of each micro-batch
  double reduce = 0;                 // of each step
  double update = 0;                 // after the optimizer's step
  // Copies of offloaded weights before a forward. A backward has twice as long ones: weights up,
  // gradients down. Nothing hides them.
  double copies = 0;
};

// The group's messages of the rows that replicate a shard: an all-reduce of its gradients.
double row_seconds(const Strategy& strategy, const Machine& machine, double parameters) {
  if (strategy.level == 0 || strategy.replicate == 1) return 0;
  return all_reduce_seconds(machine, gradient_bytes * parameters / strategy.shards(),
                            place_of_row_group(strategy, machine));
}

// The data group's messages of one stage, none of them hidden behind computation.
DataTimes data_times(const Strategy& strategy, const Machine& machine, int layers,
                     const StageParameters& stage) {
  const double parameters = stage.all;
  DataTimes times;
  if (strategy.data == 1) return times;
  const GroupPlace place = place_of_data_group(strategy, machine);
  const double bytes = weight_bytes * parameters;
  if (strategy.level <= 1) {
    times.reduce = all_reduce_seconds(machine, bytes, place);
    if (strategy.level == 1) times.update = times.reduce /= 2;
    times.reduce += row_seconds(strategy, machine, parameters);
    return times;
  }
  times.reduce = row_seconds(strategy, machine, parameters);
  if (strategy.level == 2) {
    times.backward = times.update = gather_seconds(machine, bytes, place);
    return times;
  }
  const double around = parameters - layers * stage.block;  // tables
  times.forward = layers * gather_seconds(machine, weight_bytes * stage.block, place) +
                  (around > 0 ? gather_seconds(machine, weight_bytes * around, place) : 0);
  times.backward = 2 * times.forward;
  if (strategy.offload && machine.host) {
    const double copy =
        weight_bytes * parameters / strategy.shards() / machine.host->bandwidth.value;
    times.copies = copy;
  }
  return times;
}

// The update of a stage without its messages.
double update_seconds(const Strategy& strategy, const Machine& machine, const Machine& in_precision,
                      double parameters) {
  const double share = parameters / strategy.shards();
  const double bytes = machine.transformer.optimizer_bytes.value * share;
  if (!strategy.offload || !machine.host) return bytes / machine.memory_bandwidth.value;
  const double copies = strategy.level < 3 ? (gradient_bytes + weight_bytes) * share /
                                                 in_precision.host->bandwidth.value
                                           : 0;
  return bytes * machine.devices_per_node / machine.host->memory_bandwidth.value + copies;
}

// Devices next to each other, of which there are `spans` one behind the other.
struct Spans {
  int devices = 1;
  int spans = 1;
};

// A group of `ranks` ranks, spread evenly over each span. The span on the most nodes counts.
GroupPlace place_on(const Machine& machine, int ranks, const Spans& spans) {
  const std::int64_t room = machine.devices_per_node, devices = spans.devices;
  std::int64_t nodes = 1;
  // Spans begin at the same places of a node again after room / gcd of them.
  const std::int64_t different =
      std::min<std::int64_t>(spans.spans, room / std::gcd(room, devices));
  for (std::int64_t i = 0; i < different; ++i)
    nodes = std::max(nodes, (i * devices + devices - 1) / room - i * devices / room + 1);
  const int per_node = std::max(static_cast<int>((ranks + nodes - 1) / nodes), 1);
  return {.ranks = ranks,
          .per_node = per_node,
          .sharing = std::max(machine.devices_per_node / per_node, 1)};
}

// The seconds of messages that are left when a share of them runs behind computation.
double exposed(double seconds, double computed, const Machine& machine) {
  const double share = machine.hidden_data ? machine.hidden_data->value : 0;
  return seconds - std::min(share * seconds, computed);
}

}  // namespace

int recomputed_blocks(const Strategy& strategy, int layers) {
  if (strategy.recompute == BlockRecompute::None) return 0;
  return strategy.recompute_layers == 0 ? layers : std::min(layers, strategy.recompute_layers);
}

GroupPlace place_of_tensor_group(const Strategy& strategy, const Machine& machine) {
  return {.ranks = strategy.tensor,
          .per_node = std::min(strategy.tensor, machine.devices_per_node),
          .sharing = std::max(machine.devices_per_node / strategy.tensor, 1)};
}

GroupPlace place_of_data_group(const Strategy& strategy, const Machine& machine) {
  const int ranks = strategy.level == 0 ? strategy.data : strategy.shards();
  const int rows = strategy.data / ranks;
  return place_on(machine, ranks,
                  {.devices = ranks * strategy.tensor, .spans = rows * strategy.pipeline});
}

GroupPlace place_of_row_group(const Strategy& strategy, const Machine& machine) {
  return place_on(machine, strategy.replicate,
                  {.devices = strategy.data * strategy.tensor, .spans = strategy.pipeline});
}

Reach reach_after_stage(const Strategy& strategy, const Machine& machine, int stage) {
  const std::int64_t devices = std::int64_t{strategy.tensor} * strategy.data;
  const std::int64_t first = stage * devices, last = first + 2 * devices - 1;
  return first / machine.devices_per_node == last / machine.devices_per_node ? Reach::Inside
                                                                             : Reach::Between;
}

std::vector<int> layers_of_stages(const GptModel& model, const Strategy& strategy,
                                  const Machine& machine) {
  const auto stages = static_cast<std::size_t>(strategy.pipeline);
  if (model.layers % strategy.pipeline == 0)
    return std::vector<int>(stages, static_cast<int>(model.layers / strategy.pipeline));
  const bool partial = strategy.recompute != BlockRecompute::None && strategy.recompute_layers > 0;
  const LayerSplit again = split_of(strategy, strategy.recompute);
  const double recomputed = block_seconds(model, again, machine).sum();
  const double layer =
      partial ? block_seconds(model, split_of(strategy, BlockRecompute::None), machine).sum()
              : recomputed;
  return cut_equal_layers(
      model.layers, strategy.pipeline,
      {.layer = layer,
       .first = strategy.pipeline > 1 ? embedding_seconds(model, again, machine).sum() : 0,
       .last = head_seconds(model, again, machine).sum(),
       .extra_layers = partial ? strategy.recompute_layers : 0,
       .extra = recomputed - layer});
}

std::vector<double> parameters_of_stages(const GptModel& model, const Strategy& strategy,
                                         const std::vector<int>& layers) {
  const double block = block_parameters(model, strategy.tensor);
  const double table = table_parameters(model, strategy.tensor);
  std::vector<double> parameters;
  for (const int count : layers) parameters.push_back(count * block);
  const bool llama = model.family == GptModel::Family::Llama;
  parameters.front() +=
      table + (llama ? 0 : static_cast<double>(model.sequence * model.hidden));  // positions
  if (llama) parameters.back() += static_cast<double>(model.hidden);             // the last norm
  if (!model.tied_head || layers.size() > 1) parameters.back() += table;
  return parameters;
}

struct PlannedGpt::Layout {
  std::vector<int> layers = {};
  std::vector<double> parameters = {};  // of each stage
  double block_parameters = 0;
  KeptBytes kept = {};
  PassSeconds recomputed = {};  // a block
  PassSeconds whole = {};
  PassSeconds embedding = {};
  PassSeconds head = {};
};

struct PlannedGpt::Layouts {
  std::map<std::array<int, 7>, Layout> known = {};  // by the choices that change them
  std::optional<Machine> fp32 = {};
};

PlannedGpt::PlannedGpt(const GptModel& model, const Machine& machine)
    : model_(model), machine_(machine), layouts_(std::make_shared<Layouts>()) {
  check(model);
}

const Machine& PlannedGpt::machine_for(const Strategy& strategy) const {
  if (!is_fp32(strategy) || !machine_.peak_fp32) return machine_;
  std::optional<Machine>& fp32 = layouts_->fp32;
  if (!fp32) fp32 = machine_in_fp32(machine_);
  return *fp32;
}

std::vector<int> PlannedGpt::recompute_layers(const Strategy& strategy) const {
  const std::int64_t layers = (model_.layers + strategy.pipeline - 1) / strategy.pipeline;
  std::vector<int> parts;
  for (const int quarters : {1, 2, 3}) {
    const auto part = static_cast<int>((quarters * layers + 3) / 4);
    if (part < layers && (parts.empty() || part > parts.back())) parts.push_back(part);
  }
  return parts;
}

double PlannedGpt::flops(std::int64_t batch) const {
  return model_flops(model_, static_cast<double>(batch));
}

std::string PlannedGpt::flops_formula() const { return plan::flops_formula(model_); }

std::string PlannedGpt::sources(const Machine& machine) const {
  return text(
      machine.measured_on
          ? text("Times are simulated with constants that were measured on ",
                 machine.measured_on->date, " (", machine.measured_on->cpu, ", ",
                 machine.measured_on->devices, "), and bytes are a formula's")
          : text("Times are simulated, bytes are a formula's, both assumed for this machine: "
                 "constants ",
                 machine.transformer.matrix_efficiency.from),
      "; between nodes ", format_bandwidth(machine.between.bandwidth.value), ", ",
      to_string(machine.between.bandwidth.origin), ". The range: ", machine.transformer.spread.from,
      ". MFU is ", flops_formula(), " over step x devices x peak.");
}

std::string PlannedGpt::name() const {
  const std::string_view known = name_of(model_);
  return known.empty() ? describe(model_) : text(known, " · ", describe(model_));
}

std::vector<BrokenRule> PlannedGpt::broken_rules(const Strategy& strategy) const {
  std::vector<BrokenRule> broken;
  const int t = strategy.tensor;
  const std::int64_t keys = model_.heads_of_keys();
  if (model_.heads % t == 0 && keys % t != 0 && t % keys != 0)
    broken.push_back({"heads of keys", text(t, " tensor ranks neither divide ", keys,
                                            " heads of keys and values, nor are a multiple")});
  if (model_.heads % t != 0)
    broken.push_back(
        {"heads", text(model_.heads, " heads do not divide over ", t, " tensor ranks")});
  if (t > machine_.devices_per_node || machine_.devices_per_node % t != 0)
    broken.push_back({"node", text(t, " tensor ranks do not divide a node of ",
                                   machine_.devices_per_node, " devices")});
  if (strategy.sequence_parallel && model_.sequence % t != 0)
    broken.push_back(
        {"tokens", text(model_.sequence, " tokens do not divide over ", t, " tensor ranks")});
  if (is_fp32(strategy) && !machine_.peak_fp32)
    broken.push_back(
        {"precision", text("machine '", machine_.name, "' has no peak_fp32 in [device]")});
  if (!has_plain_schedule(strategy))
    broken.push_back({"schedule", text("a GPT by its sizes has one stage on a rank and whole "
                                       "backwards, unlike ",
                                       strategy.schedule)});
  if (strategy.recompute_stages > 0)
    broken.push_back(
        {"recompute",
         "a GPT by its sizes recomputes blocks of every stage: give recompute_layers"});
  if (strategy.offload && !machine_.host) {
    broken.push_back(
        {"offload", text("machine '", machine_.name,
                         "' has no bandwidth, memory_bandwidth and memory in [host]")});
  } else if (strategy.offload) {
    const double host = host_bytes(strategy), room = machine_.host->memory.value;
    if (host > room)
      broken.push_back(
          {"host memory", text("the devices of a node offload ", format_bytes(std::llround(host)),
                               ", and its host has ", format_bytes(std::llround(room)))});
  }
  return broken;
}

const PlannedGpt::Layout& PlannedGpt::layout_of(const Strategy& strategy) const {
  const auto [found, is_new] = layouts_->known.try_emplace(
      {strategy.tensor, strategy.pipeline, strategy.micro_batch,
       static_cast<int>(strategy.recompute), strategy.recompute_layers,
       static_cast<int>(strategy.sequence_parallel), static_cast<int>(strategy.precision)});
  Layout& layout = found->second;
  if (!is_new) return layout;
  const Machine& machine = machine_for(strategy);
  const LayerSplit split = split_of(strategy, strategy.recompute);
  layout.layers = layers_of_stages(model_, strategy, machine);
  layout.parameters = parameters_of_stages(model_, strategy, layout.layers);
  layout.block_parameters = block_parameters(model_, strategy.tensor);
  layout.kept = kept_bytes(model_, strategy);
  layout.recomputed = block_seconds(model_, split, machine);
  layout.whole = block_seconds(model_, split_of(strategy, BlockRecompute::None), machine);
  layout.embedding = embedding_seconds(model_, split, machine);
  layout.head = head_seconds(model_, split, machine);
  return layout;
}

double PlannedGpt::host_bytes(const Strategy& strategy) const {
  const std::vector<double>& parameters = layout_of(strategy).parameters;
  Ledger ledger;
  set_states(&ledger, *std::max_element(parameters.begin(), parameters.end()),
             {.level = strategy.level, .shards = strategy.shards(), .offload = true},
             parameter_bytes(strategy.precision));
  return std::min(machine_.devices_per_node, strategy.devices()) * ledger.host;
}

Ledger PlannedGpt::ledger_of(const Strategy& strategy, std::int64_t micro_batches,
                             const Layout& layout, std::size_t stage) const {
  const int layers = layout.layers[stage];
  const double recomputed = layout.kept.whole - layout.kept.recomputed;
  const ParameterBytes state = parameter_bytes(strategy.precision);
  Ledger ledger{.stage = static_cast<int>(stage)};
  set_states(&ledger, layout.parameters[stage],
             {.level = strategy.level, .shards = strategy.shards(), .offload = strategy.offload},
             state);
  ledger.activations =
      in_flight(strategy, micro_batches, ledger.stage) * layout.kept.of_stage(strategy, layers);
  ledger.transient = recomputed;
  if (stage + 1 == layout.layers.size()) {
    // The scores in bf16, a copy in fp32 and their gradient; in fp32 there is no copy. No block is
    // recomputed meanwhile.
    const double logits = (is_fp32(strategy) ? 8.0 : 10.0) * strategy.micro_batch *
                          static_cast<double>(model_.sequence * model_.vocabulary) /
                          strategy.tensor;
    (logits > recomputed ? ledger.logits : ledger.transient) = std::max(logits, recomputed);
    if (logits > recomputed) ledger.transient = 0;
  }
  const double block = layout.block_parameters;
  // Level 3 holds two gathered blocks, or a table, and level 2 and 3 a block's whole gradients.
  if (strategy.data > 1 && strategy.level == 3)
    ledger.gathered = std::max(2 * state.weight * block,
                               state.weight * (layout.parameters[stage] - layers * block));
  if (strategy.data > 1 && strategy.level >= 2) ledger.gathered += state.gradient * block;
  if (strategy.pipeline > 1)
    ledger.messages = 4 * size_of(strategy) * message_bytes(model_, strategy) /
                      (strategy.sequence_parallel ? strategy.tensor : 1);
  ledger.reserved = machine_.reserved.value;
  return ledger;
}

std::vector<Ledger> PlannedGpt::ledgers(const Strategy& strategy,
                                        std::int64_t micro_batches) const {
  const Layout& layout = layout_of(strategy);
  std::vector<Ledger> ledgers;
  for (std::size_t s = 0; s < layout.layers.size(); ++s)
    ledgers.push_back(ledger_of(strategy, micro_batches, layout, s));
  return ledgers;
}

Ledger PlannedGpt::worst_ledger(const Strategy& strategy, std::int64_t micro_batches) const {
  const Layout& layout = layout_of(strategy);
  const std::vector<int>& layers = layout.layers;
  Ledger worst = ledger_of(strategy, micro_batches, layout, 0);
  for (std::size_t s = 1; s < layers.size(); ++s) {
    if (is_as_before(layers, s)) continue;
    const Ledger ledger = ledger_of(strategy, micro_batches, layout, s);
    if (ledger.total() > worst.total()) worst = ledger;
  }
  return worst;
}

std::vector<LinkBytes> PlannedGpt::sent(const Strategy& strategy,
                                        std::int64_t micro_batches) const {
  const Layout& layout = layout_of(strategy);
  return bytes_sent_by_stages(model_, strategy, machine_,
                              {.layers = layout.layers, .parameters = layout.parameters},
                              micro_batches);
}

StrategyCosts PlannedGpt::costs(const Strategy& strategy, std::int64_t micro_batches) const {
  const Machine& machine = machine_for(strategy);
  const Layout& layout = layout_of(strategy);
  const std::vector<int>& layers = layout.layers;
  const auto n = static_cast<double>(micro_batches);
  StrategyCosts costs;
  costs.costs.stages.reserve(layers.size());
  for (std::size_t s = 0; s < layers.size(); ++s) {
    if (is_as_before(layers, s)) {
      costs.costs.stages.push_back(costs.costs.stages.back());
      for (auto* seconds : {&costs.tensor_messages, &costs.data_messages, &costs.update_messages})
        seconds->push_back(seconds->back());
      continue;
    }
    PassSeconds pass;
    const auto add = [&pass](const PassSeconds& more, int times = 1) {
      pass.forward += times * more.forward;
      pass.backward += times * more.backward;
      pass.forward_messages += times * more.forward_messages;
      pass.backward_messages += times * more.backward_messages;
    };
    const int again = recomputed_blocks(strategy, layers[s]);
    add(layout.recomputed, again);
    add(layout.whole, layers[s] - again);
    if (s == 0) add(layout.embedding);
    if (s + 1 == layers.size()) add(layout.head);
    const double parameters = layout.parameters[s];
    DataTimes data = data_times(strategy, machine, layers[s],
                                {.all = parameters, .block = layout.block_parameters});
    const double backward = pass.backward - pass.backward_messages;
    data.forward =
        data.copies + exposed(data.forward, pass.forward - pass.forward_messages, machine);
    data.backward = 2 * data.copies + exposed(data.backward, backward, machine);
    data.reduce = exposed(data.reduce, backward, machine);  // behind the last backward
    simulate::StageCost stage;
    stage.forward = stage.forward_no_graph = stage.recompute = pass.forward + data.forward;
    stage.backward = pass.backward + data.backward;
    stage.input_grad = stage.weight_grad = stage.backward / 2;
    stage.norm = machine_.transformer.step_seconds.value;
    stage.step = update_seconds(strategy, machine_, machine, parameters) + data.update;
    stage.reduce = data.reduce;
    const Ledger ledger = ledger_of(strategy, micro_batches, layout, s);
    const auto rounded = [](double amount) {
      constexpr double most = 1e14;  // the simulator adds these up
      return static_cast<Bytes>(std::min(amount, most));
    };
    stage.persistent = rounded(ledger.parameters + ledger.optimizer + ledger.reserved);
    stage.gradients = rounded(ledger.gradients);
    stage.saved = rounded(layout.kept.of_stage(strategy, layers[s]));
    stage.transient_forward = stage.transient_no_graph = rounded(ledger.gathered);
    stage.transient_backward = rounded(ledger.transient + ledger.logits + ledger.gathered);
    costs.costs.stages.push_back(stage);
    costs.tensor_messages.push_back(n * (pass.forward_messages + pass.backward_messages));
    costs.data_messages.push_back(n * (data.forward + data.backward) + data.reduce + data.update);
    costs.update_messages.push_back(data.update);
  }
  const int senders = std::min(strategy.tensor * strategy.data, machine_.devices_per_node);
  const double kept_by_message = size_of(strategy) * message_bytes(model_, strategy);
  for (std::size_t s = 1; s < layers.size(); ++s) {
    // Each tensor rank sends its share between nodes, and the receivers gather it.
    const Reach reach = reach_after_stage(strategy, machine_, static_cast<int>(s) - 1);
    const double bytes_of_message =
        message_bytes(model_, strategy) / (reach == Reach::Between ? strategy.tensor : 1);
    costs.costs.routes.push_back(
        {.seconds = message_seconds(machine, bytes_of_message, {reach, senders}),
         .bytes = static_cast<Bytes>(std::min(kept_by_message, 1e14) /
                                     (strategy.sequence_parallel ? strategy.tensor : 1))});
  }
  return costs;
}

}  // namespace trestle::plan
