#include "trestle/train/step_prediction.h"

#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "trestle/train/layer_costs.h"
#include "trestle/train/message_times.h"
#include "trestle/train/optimizer_peaks.h"
#include "trestle/train/run_network.h"
#include "trestle/train/setup.h"
#include "trestle/train/shard_traffic.h"
#include "trestle/train/sharding_plan.h"

namespace trestle::train {

namespace {

// Numbers of a stage that only its ranks have.
struct StageNumbers {
  SteppedBytes bytes;
  Bytes frozen = 0;
  Bytes largest_unit = 0;
  int units = 1;
  int trained_units = 1;
  MessageCost message;
  bool on_cpu = false;
};
struct StageFacts : StageNumbers {
  std::vector<TrafficLayer> layers;
  std::vector<int> hosts;  // of its rank in each replica
};

// The layers of a stage.
std::span<const nn::Layer> layers_of(const Pipeline& pipeline, const nn::Graph& graph, int stage) {
  const auto& balance = pipeline.balance();
  std::size_t first = 0;
  for (int before = 0; before < stage; ++before)
    first += static_cast<std::size_t>(balance[static_cast<std::size_t>(before)]);
  return std::span(graph.layers)
      .subspan(first, static_cast<std::size_t>(balance[static_cast<std::size_t>(stage)]));
}

// The stage's layers with parameters, trained or frozen. A tied parameter belongs to its owner's
// layer alone.
std::vector<TrafficLayer> layers_with_parameters(std::span<const nn::Layer> all) {
  std::vector<TrafficLayer> layers;
  for (const nn::Layer& layer : all) {
    TrafficLayer one{.name = layer.name};
    for (const auto& [name, parameter] : layer.named_parameters()) {
      const auto bytes = static_cast<Bytes>(parameter.nbytes());
      if (parameter.requires_grad())
        one.parameters.push_back(bytes);
      else
        one.frozen += bytes;
    }
    if (one.trained() + one.frozen > 0) layers.push_back(std::move(one));
  }
  return layers;
}

// The group whose messages are timed for a stage: those that do not cross hosts, if there are some.
comm::Group timed_group(const RunRanks& ranks, const std::optional<RunNetwork>& network) {
  if (!network) return ranks.replica_groups().all;
  const auto on_one_host = [&](const comm::Group& group) {
    return group.valid() && std::all_of(group.ranks().begin(), group.ranks().end(), [&](int rank) {
             return network->host_of_rank.at(static_cast<std::size_t>(rank)) ==
                    network->host_of_rank.at(static_cast<std::size_t>(group.ranks().front()));
           });
  };
  for (const comm::Group& group : {ranks.replica_groups().all, ranks.replica_groups().shard})
    if (on_one_host(group)) return group;
  return {};
}

StageNumbers numbers_of_stage(const recipe::Recipe& recipe, Pipeline& pipeline, int stage,
                              const std::vector<TrafficLayer>& layers, const comm::Group& timed) {
  StageNumbers numbers;
  numbers.on_cpu = pipeline.device(stage).torch.is_cpu();
  for (const at::Tensor& parameter : pipeline.stage_parameters(stage)) {
    const auto bytes = static_cast<Bytes>(parameter.nbytes());
    if (!parameter.requires_grad()) {
      numbers.frozen += bytes;
      continue;
    }
    numbers.bytes.trained += bytes;
    numbers.bytes.largest = std::max(numbers.bytes.largest, bytes);
  }
  std::vector<LayerBytes> bytes;
  for (const TrafficLayer& layer : layers)
    bytes.push_back({.name = layer.name, .bytes = layer.trained() + layer.frozen});
  numbers.largest_unit = largest_unit(recipe.mesh, bytes);
  if (units_of(recipe.mesh).kind == UnitChoiceOfRecipe::Kind::Layers) {
    numbers.units = std::max(1, static_cast<int>(layers.size()));
    numbers.trained_units = static_cast<int>(std::count_if(
        layers.begin(), layers.end(), [](const TrafficLayer& one) { return one.trained() > 0; }));
  } else if (numbers.largest_unit > 0) {
    numbers.units = numbers.trained_units =
        static_cast<int>((numbers.bytes.trained + numbers.frozen) / numbers.largest_unit) + 1;
  }
  if (timed.valid())
    numbers.message = time_messages(timed, pipeline.device(stage).torch, numbers.bytes.trained);
  return numbers;
}

std::vector<StageFacts> facts_of_stages(const recipe::Recipe& recipe, Pipeline& pipeline,
                                        const RunRanks& ranks,
                                        const std::optional<RunNetwork>& network) {
  const nn::Graph graph = pipeline.model().graph();
  // The layers' names and parameters travel beside the numbers.
  using Layer = std::tuple<std::string, std::vector<Bytes>, Bytes>;
  std::vector<std::tuple<int, StageNumbers, std::vector<Layer>>> rows;
  const comm::Group timed = ranks.replicas() > 1 ? timed_group(ranks, network) : comm::Group();
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    if (!pipeline.has_stage(stage)) continue;
    const std::vector<TrafficLayer> layers =
        layers_with_parameters(layers_of(pipeline, graph, stage));
    std::vector<Layer> packed;
    for (const TrafficLayer& layer : layers)
      packed.emplace_back(layer.name, layer.parameters, layer.frozen);
    rows.emplace_back(stage, numbers_of_stage(recipe, pipeline, stage, layers, timed), packed);
  }
  std::vector<StageFacts> all(static_cast<std::size_t>(pipeline.stage_count()));
  const auto gathered = ranks.gather(std::pair(ranks.replica(), rows));
  for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
    const auto& [replica, own] = gathered[rank];
    for (const auto& [stage, numbers, packed] : own) {
      StageFacts& facts = all.at(static_cast<std::size_t>(stage));
      static_cast<StageNumbers&>(facts) = numbers;
      facts.layers.clear();
      for (const auto& [name, parameters, frozen] : packed)
        facts.layers.push_back({.name = name, .parameters = parameters, .frozen = frozen});
      for (TrafficLayer& layer : facts.layers)  // the same work in each is assumed
        layer.forward = layer.backward = 1 / static_cast<double>(facts.layers.size());
      facts.hosts.resize(static_cast<std::size_t>(ranks.replicas()), 0);
      if (network) facts.hosts.at(static_cast<std::size_t>(replica)) = network->host_of_rank[rank];
    }
  }
  return all;
}

// A plain CPU has no memory meter. Its predicted bytes would be those of the weights alone, drawn
// as if they were all.
void forget_bytes_of_cpu(const std::vector<StageFacts>& stages, schedule::Timeline* timeline) {
  std::vector<bool> counted(static_cast<std::size_t>(timeline->rank_count), true);
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    if (stages[stage].on_cpu)
      counted[static_cast<std::size_t>(timeline->rank_of_stage.at(stage))] = false;
  std::erase_if(timeline->memory, [&](const schedule::MemorySample& sample) {
    return !counted.at(static_cast<std::size_t>(sample.rank));
  });
  for (std::size_t rank = 0; rank < timeline->peak_bytes.size(); ++rank)
    if (!counted.at(rank)) timeline->peak_bytes[rank] = 0;
}

// The duration without the optimizer, and what the optimizer adds to it.
void predict_times(const Pipeline& pipeline, Prediction* prediction) {
  simulate::Costs without = prediction->costs;
  for (simulate::StageCost& cost : without.stages) cost.norm = cost.step = 0;
  const schedule::Timeline step = pipeline.predict(without);
  prediction->seconds = schedule::makespan(step);
  prediction->idle = schedule::idle_share_of_makespan(step);
  prediction->optimizer_seconds =
      std::max(0.0, schedule::makespan(prediction->timeline) - prediction->seconds);
}

// The link between hosts, and where the stages of each replica are.
bool is_on_cpu(const Pipeline& pipeline) {
  for (int stage = 0; stage < pipeline.stage_count(); ++stage)
    if (pipeline.has_stage(stage) && !pipeline.device(stage).torch.is_cpu()) return false;
  return true;
}

simulate::Network network_of(const RunNetwork& found, const std::vector<StageFacts>& stages,
                             bool on_cpu) {
  simulate::Network network{
      .link = found.measured ? found.link : simulate::without_headers(found.link), .hosts = {}};
  if (on_cpu) network.in_first_part = simulate::in_first_part_on_cpu;
  network.hosts.resize(stages.at(0).hosts.size());
  for (const StageFacts& stage : stages)
    for (std::size_t replica = 0; replica < network.hosts.size(); ++replica)
      network.hosts[replica].push_back(stage.hosts.at(replica));
  return network;
}

// The communication of data parallelism: its bytes, and its durations in the prediction's costs.
void predict_communication(const recipe::Recipe& recipe, const Pipeline& pipeline,
                           const std::vector<StageFacts>& stages, int micro_batches,
                           Prediction* prediction) {
  if (recipe.mesh.parts() == 1) return;
  const auto modes = recompute_modes(recipe, stages.size());
  const double before = schedule::makespan(pipeline.predict(prediction->costs));
  std::vector<simulate::StageTraffic> traffic;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const StageFacts& facts = stages[stage];
    StageParameters parameters{.trained = facts.bytes.trained};
    for (const TrafficLayer& layer : facts.layers) parameters.frozen += layer.frozen;
    const SentBytes sent = bytes_sent(recipe.mesh, parameters,
                                      {.micro_batches = micro_batches, .recompute = modes[stage]});
    prediction->bytes_sent = std::max(prediction->bytes_sent, sent.all());
    traffic.push_back(stage_traffic(recipe.mesh, facts.layers, facts.hosts, facts.message));
    if (traffic.back().hosts.size() > 1) continue;
    add_communication(
        sent, facts.message,
        {.gather = facts.units,
         .reduce = messages_of_reduction(recipe.mesh, facts.bytes.trained, facts.trained_units),
         .agreements = agreements_of(recipe),
         .beside_backward = !is_on_cpu(pipeline)},
        &prediction->costs.stages[stage]);
  }
  if (prediction->costs.network) prediction->costs.network->stages = std::move(traffic);
  prediction->communication_seconds =
      std::max(0.0, schedule::makespan(pipeline.predict(prediction->costs)) - before);
}

// The messages of tensor ranks take as long as those that their group exchanges now. All ranks call
// it; the slowest group counts.
void time_tensor_messages(const Pipeline& pipeline, const RunRanks& ranks, simulate::Costs* costs) {
  const tensor_parallel::TensorRanks& tensor = ranks.tensor().ranks;
  if (tensor.alone()) return;
  Bytes largest = 0;
  for (const simulate::StageMessages& stage : costs->messages)
    for (const auto* list : {&stage.forward, &stage.backward})
      for (const LayerMessage& message : *list) largest = std::max(largest, message.bytes);
  at::Device device = at::kCPU;
  for (int stage = pipeline.stage_count() - 1; stage >= 0; --stage)
    if (pipeline.has_stage(stage)) device = pipeline.device(stage).torch;
  const MessageCost own = time_messages(tensor.group(), device, largest);
  MessageCost slowest;
  for (const auto& all : ranks.gather(std::vector<double>{own.seconds, own.seconds_per_byte})) {
    slowest.seconds = std::max(slowest.seconds, all.at(0));
    slowest.seconds_per_byte = std::max(slowest.seconds_per_byte, all.at(1));
  }
  for (std::size_t stage = 0; stage < costs->messages.size(); ++stage)
    simulate::set_message_times(
        [&](const LayerMessage& message) { return seconds_of(message, tensor.size(), slowest); },
        &costs->messages[stage], &costs->stages[stage]);
}

std::vector<Bytes> peaks_of_stages(const std::vector<StageFacts>& stages,
                                   const schedule::Timeline& timeline) {
  std::vector<Bytes> peaks;
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    peaks.push_back(stages[stage].on_cpu ? 0
                                         : timeline.device_peak_bytes.at(static_cast<std::size_t>(
                                               timeline.device_of_stage.at(stage))));
  return peaks;
}

}  // namespace

std::optional<Prediction> predict_step(const recipe::Recipe& recipe, Pipeline& pipeline,
                                       const Task& task, const data::Batch& batch,
                                       const RunRanks& ranks) {
  try {
    Prediction prediction;
    prediction.costs = pipeline.profile({batch.inputs}, batch.targets, task.loss);
    time_tensor_messages(pipeline, ranks, &prediction.costs);
    const std::optional<RunNetwork> network = find_network(recipe.mesh, ranks);
    const std::vector<StageFacts> stages = facts_of_stages(recipe, pipeline, ranks, network);
    if (network) {
      prediction.costs.network = network_of(*network, stages, is_on_cpu(pipeline));
      prediction.network = network->words();
    }
    const int states = optimizer_state_factor(recipe.optimizer);
    const int micro_batches = micro_batches_of(recipe);
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      auto& cost = prediction.costs.stages[stage];
      const Bytes trained = stages[stage].bytes.trained;
      cost.persistent += trained * states;
      size_sharded_state(recipe,
                         {.trained = trained,
                          .largest_unit = stages[stage].largest_unit,
                          .frozen = stages[stage].frozen,
                          .largest = stages[stage].bytes.largest},
                         states, micro_batches, &cost);
    }
    // Batches after the first one of a step add to existing gradients.
    prediction.costs.gradients_at_start |= recipe.train.accumulate > 1;
    predict_communication(recipe, pipeline, stages, micro_batches, &prediction);
    pipeline.remember_costs(prediction.costs);
    prediction.timeline = pipeline.predict(prediction.costs);
    predict_times(pipeline, &prediction);
    prediction.tensor = tensor_traffic(prediction.timeline, ranks.tensor().ranks.size());
    std::vector<SteppedBytes> stepped;
    for (const StageFacts& facts : stages) stepped.push_back(facts.bytes);
    add_optimizer_peaks(recipe, stepped, prediction.costs, &prediction.timeline);
    forget_bytes_of_cpu(stages, &prediction.timeline);
    prediction.stage_peaks = peaks_of_stages(stages, prediction.timeline);
    return prediction;
  } catch (const c10::OutOfMemoryError&) {
    if (!ranks.alone()) throw;
    return std::nullopt;  // with recomputation the run itself may still fit
  }
}

}  // namespace trestle::train
