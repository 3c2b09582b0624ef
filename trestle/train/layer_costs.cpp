#include "trestle/train/layer_costs.h"
#include "trestle/train/recipe_schedule.h"

#include <algorithm>
#include <set>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/execute/micro_batch.h"
#include "trestle/pipeline/profile/profile_layers.h"
#include "trestle/plan/stage_costs.h"
#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/collective_traffic.h"
#include "trestle/simulate/simulate.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/loss_memory.h"
#include "trestle/train/network_on_paper.h"
#include "trestle/train/optimizer_peaks.h"
#include "trestle/train/optimizers/parameter_groups.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/setup.h"
#include "trestle/train/shard_traffic.h"
#include "trestle/train/sharding_plan.h"
#include "trestle/train/table_costs.h"

namespace trestle::train {
namespace {

// `recompute` may list a mode for each stage: sizes are then those of the mode that keeps most.
schedule::Recompute largest_mode(const recipe::Recipe& recipe) {
  const auto& words = recipe.pipeline.recompute;
  if (words.empty())
    throw UsageError("'recompute' in [pipeline] is an empty list",
                     {.hint = "Give one word for all stages, or one for each."});
  schedule::Recompute largest = schedule::Recompute::Always;
  for (const auto& word : words) largest = std::min(largest, schedule::parse_recompute(word));
  return largest;
}

std::string format_name(const recipe::Recipe& recipe) {
  return memory_format_of(recipe) == at::MemoryFormat::ChannelsLast ? "channels_last"
                                                                    : "contiguous";
}

Bytes parameter_bytes(const nn::Layer& layer) {
  Bytes bytes = 0;
  for (const at::Tensor& parameter : layer.parameters())
    bytes += static_cast<Bytes>(parameter.nbytes());
  return bytes;
}

// A tied parameter counts in its owner's layer alone.
void check_layers(const recipe::Recipe& recipe, const plan::LayerProfile& profile,
                  const nn::Layers& model) {
  const auto& layers = model.graph().layers;
  const auto refuse = [&](const std::string& what) {
    throw UsageError(text("the profile is not of the model '", recipe.model.name, "': ", what),
                     {.hint = "Measure it again: trestle balance RECIPE --save FILE."});
  };
  if (profile.layers.size() != layers.size())
    refuse(text("it has ", counted(std::ssize(profile.layers), "layer"), ", the model ",
                layers.size()));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (profile.layers[i].name != layers[i].name)
      refuse(text("layer ", i, " is '", profile.layers[i].name, "' there and '", layers[i].name,
                  "' in the model"));
    const Bytes held = parameter_bytes(layers[i]);
    if (profile.layers[i].parameters > held ||
        (profile.together.empty() && profile.layers[i].parameters != held))
      refuse(text("layer ", i, ", '", layers[i].name, "', has ",
                  format_bytes(profile.layers[i].parameters), " of weights there and ",
                  format_bytes(held), " in the model"));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Bytes frozen = 0;
    for (const at::Tensor& parameter : layers[i].parameters())
      if (!parameter.requires_grad()) frozen += static_cast<Bytes>(parameter.nbytes());
    if (profile.layers[i].frozen != frozen)
      refuse(text("layer ", i, ", '", layers[i].name, "', has ",
                  format_bytes(profile.layers[i].frozen), " of frozen weights there and ",
                  format_bytes(frozen), " in the model"));
  }
  std::set<std::pair<int, std::string>> tied;
  for (const auto& tie : model.graph().ties) tied.insert(nn::owner_of(model.graph(), tie));
  if (profile.ties.size() != tied.size() && profile.together.empty())
    refuse(text("it has ", counted(std::ssize(profile.ties), "tied parameter"), ", the model ",
                tied.size()));
}

// Times and bytes are valid for one micro-batch size, one memory format, one choice of recomputed
// layers and one of what tensor ranks keep.
void check_measured_with(const recipe::Recipe& recipe, const plan::LayerProfile& profile,
                         int examples) {
  const auto refuse = [](const std::string& what) {
    throw UsageError(what, {.hint = "Measure it again: trestle balance RECIPE --save FILE."});
  };
  if (profile.examples > 0 && profile.examples != examples)
    refuse(text("the profile is of micro-batches of ", profile.examples, ", the recipe's have ",
                examples, " ('batch' in [train] over 'micro_batches' in [pipeline])"));
  if (!profile.memory_format.empty() && profile.memory_format != format_name(recipe))
    refuse(text("the profile was measured ", profile.memory_format, ", the recipe runs ",
                format_name(recipe), " ('memory_format' in [model])"));
  const auto recomputed = [](const std::vector<std::string>& names) {
    return names.empty() ? "no layer" : join(names, ", ");
  };
  if (profile.checkpoint != recipe.pipeline.checkpoint)
    refuse(text("the profile was measured with ", recomputed(profile.checkpoint),
                " recomputed, the recipe recomputes ", recomputed(recipe.pipeline.checkpoint),
                " ('checkpoint' in [pipeline])"));
  const auto compare = [&](const char* field, bool there, bool here) {
    const auto word = [](bool set) { return set ? "true" : "false"; };
    if (there != here)
      refuse(text("the profile was measured with ", field, " = ", word(there), ", the recipe has ",
                  word(here)));
  };
  compare("'split_recomputed' in [pipeline]", profile.split_recomputed,
          recipe.pipeline.split_recomputed);
  compare("'sequence_parallel' in [mesh]", profile.sequence_parallel,
          recipe.mesh.sequence_parallel);
}

}  // namespace

LayerCosts costs_without_layers(const recipe::Recipe& recipe, const std::vector<Device>& devices,
                                int micro_batches) {
  const std::size_t stages = stage_count(recipe, devices.size());
  const std::vector<int> ranks = ranks_of_stages(recipe, stages);
  LayerCosts result;
  for (std::size_t s = 0; s < stages; ++s) {
    const std::size_t place = devices.size() == 1        ? 0
                              : devices.size() == stages ? s
                                                         : static_cast<std::size_t>(ranks[s]);
    const Device& device = devices.at(place);
    result.devices.push_back(device_name(device.torch));
    result.budgets.push_back(device.budget);
  }
  result.sizes = {.optimizer_states = optimizer_state_factor(recipe.optimizer),
                  .micro_batches = micro_batches,
                  .recompute = largest_mode(recipe)};
  return result;
}

std::vector<int> device_numbers(const LayerCosts& costs) {
  std::vector<int> numbers;
  std::vector<std::string> seen;
  for (const std::string& device : costs.devices) {
    const auto found = std::find(seen.begin(), seen.end(), device);
    numbers.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(device);
  }
  return numbers;
}

void count_optimizer_step(const recipe::Recipe& recipe, const nn::Layers& model,
                          LayerCosts* costs) {
  for (const nn::Layer& layer : model.graph().layers) {
    Bytes largest = 0;
    for (const at::Tensor& parameter : layer.parameters())
      if (parameter.requires_grad())
        largest = std::max(largest, static_cast<Bytes>(parameter.nbytes()));
    costs->largest.push_back(largest);
    costs->sizes.step_transients.push_back(
        step_temporaries(recipe) * bytes_during_optimizer_step(recipe, largest, largest).largest);
  }
}

std::int64_t examples_of_loss(const recipe::Recipe& recipe, const nn::Loss& loss,
                              const LayerCosts& costs) {
  if (loss.kind != nn::Loss::Kind::WholeBatch) return costs.examples;
  return std::int64_t{costs.examples} * costs.sizes.micro_batches * recipe.mesh.parts();
}

void set_loss_memory(const nn::Loss& loss, LayerCosts* costs) {
  if (loss.kind != nn::Loss::Kind::WholeBatch)
    costs->sizes.loss_memory = 1 + costs->profile.loss_memory;
}

void add_loss_messages(const recipe::Recipe& recipe, const models::TensorSplit& split,
                       plan::LayerProfile* profile) {
  if (split.ranks.alone() || !splits_scores(recipe)) return;
  const Bytes tokens = largest_micro_batch_of(recipe) * tokens_of_example(recipe);
  constexpr Bytes number = sizeof(float);
  auto& messages = profile->layers.back().backward_messages;
  messages.insert(messages.begin(), {{.bytes = number * tokens}, {.bytes = 2 * number * tokens}});
}

LayerCosts measure_layers(const recipe::Recipe& recipe, Progress& progress,
                          const models::OwnModels& own, const UserParts& user_parts) {
  return measure_layers(recipe, progress, own, user_parts,
                        splits_backward(recipe) ? SplitBackwards::Measure : SplitBackwards::Leave);
}

LayerCosts measure_layers(const recipe::Recipe& recipe, Progress& progress,
                          const models::OwnModels& own, const UserParts& user_parts,
                          SplitBackwards split_backwards) {
  check_training(recipe, user_parts);
  const std::vector<Device> devices = open_devices(recipe);
  return measure_layers(recipe, make_task(recipe, progress, user_parts), devices, own,
                        split_backwards);
}

LayerCosts measure_layers(const recipe::Recipe& recipe, const Task& task,
                          const std::vector<Device>& devices, const models::OwnModels& own,
                          SplitBackwards split_backwards) {
  const models::TensorSplit split = split_on_paper(recipe.mesh);
  const nn::Layers model = make_model(recipe, own, split);
  freeze_named(recipe, model.named_parameters());
  const at::MemoryFormat format = memory_format_of(recipe);
  for (const auto& layer : model.graph().layers) layer.to(format);
  // Among ranks that share a batch the last one has the largest share.
  const auto parts = static_cast<int>(recipe.mesh.parts());
  const data::Batch batch =
      task.training->read(0, 0, data::Part::Both, {.part = parts - 1, .parts = parts});
  check_channels(recipe, batch.inputs);
  const auto pieces = pipeline::split(
      {batch.inputs}, static_cast<int>(recipe.pipeline.micro_batches), recipe.pipeline.split_size);
  const at::Tensor piece = pipeline::in_memory_format(pieces[0], format)[0];
  LayerCosts result = costs_without_layers(recipe, devices, static_cast<int>(pieces.size()));
  count_optimizer_step(recipe, model, &result);
  const precision::Autocast autocast(precision::parse_precision(recipe.train.precision));
  result.profile = with_inputs_named(recipe, piece, [&] {
    return profile_layers(graph_of_training(recipe, model), {piece}, devices.at(0).torch,
                          split.ranks.log().get(), {}, split_backwards);
  });
  result.examples = static_cast<int>(piece.size(0));
  add_loss_messages(recipe, split, &result.profile);
  result.profile.loss_memory =
      loss_memory(task.loss, result.profile, result.examples,
                  batch.targets.defined() ? batch.targets[0] : batch.targets,
                  examples_of_loss(recipe, task.loss, result), devices[0].torch);
  set_loss_memory(task.loss, &result);
  result.profile.examples = result.examples;
  result.profile.memory_format = format_name(recipe);
  result.profile.checkpoint = recipe.pipeline.checkpoint;
  result.profile.split_recomputed = recipe.pipeline.split_recomputed;
  result.profile.sequence_parallel = recipe.mesh.sequence_parallel;
  return result;
}

LayerCosts costs_of_profile(const recipe::Recipe& recipe, plan::LayerProfile profile,
                            const models::OwnModels& own, const UserParts& user_parts) {
  check_training(recipe, user_parts);
  const std::vector<Device> devices = planned_devices(recipe.devices.use);
  const nn::Layers model = make_model(recipe, own, split_on_paper(recipe.mesh));
  freeze_named(recipe, model.named_parameters());
  check_layers(recipe, profile, model);
  LayerCosts result = costs_without_layers(recipe, devices, micro_batches_of(recipe));
  count_optimizer_step(recipe, model, &result);
  result.examples = largest_micro_batch_of(recipe);
  check_measured_with(recipe, profile, result.examples);
  result.profile = std::move(profile);
  set_loss_memory(loss_of(recipe, user_parts), &result);
  return result;
}

static bool is_on_cpu(const LayerCosts& costs) {
  return std::all_of(costs.devices.begin(), costs.devices.end(),
                     [](const std::string& device) { return device == "cpu"; });
}

static void size_stages(const recipe::Recipe& recipe, const LayerCosts& costs,
                        const std::vector<int>& balance, bool units_walked,
                        simulate::Costs* sized) {
  std::size_t layer = 0;
  for (std::size_t s = 0; s < sized->stages.size(); ++s) {
    std::vector<LayerBytes> layers;
    // Without copies of tied parameters, which have no optimizer state.
    StageParameters bytes;
    for (int i = 0; i < balance.at(s); ++i, ++layer) {
      const auto& one = costs.profile.layers.at(layer);
      bytes.trained += one.trained();
      bytes.frozen += one.frozen;
      bytes.largest = std::max(bytes.largest, costs.largest.at(layer));
      if (one.parameters > 0) layers.push_back({.name = one.name, .bytes = one.parameters});
    }
    if (!units_walked) bytes.largest_unit = largest_unit(recipe.mesh, layers);
    size_sharded_state(recipe, bytes, costs.sizes.optimizer_states, costs.sizes.micro_batches,
                       &sized->stages[s]);
  }
}

// The units' memory of all layers, in the order of the stages.
static std::vector<plan::UnitMemory> memory_of_units(const recipe::Recipe::Mesh& mesh,
                                                     const plan::LayerProfile& profile,
                                                     const std::vector<int>& balance) {
  std::vector<plan::UnitMemory> all;
  auto layer = profile.layers.begin();
  for (const int count : balance) {
    std::vector<LayerParameters> stage;
    for (const auto end = layer + count; layer != end; ++layer)
      stage.push_back({.name = layer->name, .trained = layer->trained(), .frozen = layer->frozen});
    const std::vector<plan::UnitMemory> own = memory_of_units(mesh, stage);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

// In one process without replicas a copy shares the memory of an earlier owner on the same device.
static void share_copies(const recipe::Recipe& recipe, simulate::Costs* costs) {
  if (recipe.mesh.parts() > 1 || recipe.mesh.pipeline > 1) return;
  for (const simulate::TieCost& tie : costs->ties) {
    const auto owner = static_cast<std::size_t>(tie.owner);
    const auto copy = static_cast<std::size_t>(tie.copy);
    if (owner < copy && costs->device_of_stage.at(owner) == costs->device_of_stage.at(copy))
      costs->stages[copy].persistent -= tie.bytes;
  }
}

plan::CutCosts costs_of_cut(const recipe::Recipe& recipe, const LayerCosts& costs,
                            const std::vector<int>& balance, const UserParts& user_parts) {
  plan::check_cut(balance, costs.profile.layers.size());
  const bool whole = loss_of(recipe, user_parts).kind == nn::Loss::Kind::WholeBatch;
  // Replicas gather the outputs of all, and each computes such a loss over the whole batch.
  const auto loss_over = costs.sizes.micro_batches * static_cast<int>(recipe.mesh.parts());
  const std::vector<plan::UnitMemory> units = memory_of_units(recipe.mesh, costs.profile, balance);
  // Several backwards of a step keep whole gradients until the last one.
  const bool reduces_each = costs.sizes.micro_batches == 1 && recipe.train.accumulate == 1;
  plan::CutCosts cut = plan::costs_of_cut(
      costs.profile, balance,
      {.optimizer_states = costs.sizes.optimizer_states,
       .whole_batch_loss_over = whole ? loss_over : 0,
       .additive_loss_memory = costs.profile.loss_memory,
       .units = units,
       .gradient_shards =
           units.empty() || !reduces_each ? 1 : static_cast<int>(recipe.mesh.shard)});
  cut.costs.device_of_stage = device_numbers(costs);
  share_copies(recipe, &cut.costs);
  if (is_on_cpu(costs) || !stages_apart(recipe.mesh))
    cut.costs.concurrency = simulate::Concurrency::OneThread;
  size_stages(recipe, costs, balance, !units.empty(), &cut.costs);
  cut.costs.gradients_at_start = recipe.train.accumulate > 1;
  return cut;
}

std::vector<schedule::Recompute> recompute_modes(const recipe::Recipe& recipe, std::size_t stages) {
  const auto& words = recipe.pipeline.recompute;
  if (words.size() != 1 && words.size() != stages)
    throw UsageError(
        text("'recompute' in [pipeline] has ", counted(std::ssize(words), "entry", "entries"),
             " for ", counted(static_cast<std::int64_t>(stages), "stage")),
        {.hint = "Give one for all stages, or one for each."});
  std::vector<schedule::Recompute> modes;
  for (std::size_t s = 0; s < stages; ++s)
    modes.push_back(schedule::parse_recompute(words[words.size() == 1 ? 0 : s]));
  return modes;
}

schedule::Schedule lowered_table(const recipe::Recipe& recipe,
                                 const std::vector<schedule::Route>& routes, int micro_batches,
                                 const std::vector<schedule::Recompute>& modes) {
  const schedule::Schedule table =
      compute_actions(recipe, static_cast<int>(modes.size()), micro_batches);
  return schedule::lower(table, {.routes = routes, .recompute = modes});
}

static std::vector<TrafficLayer> traffic_layers(const LayerCosts& costs, std::size_t first,
                                                std::size_t last) {
  double forward = 0, backward = 0;
  for (std::size_t i = first; i < last; ++i) {
    forward += costs.profile.layers.at(i).forward;
    backward += costs.profile.layers.at(i).backward;
  }
  std::vector<TrafficLayer> layers;
  for (std::size_t i = first; i < last; ++i) {
    const plan::LayerCost& layer = costs.profile.layers[i];
    if (layer.parameters > 0) {
      layers.push_back({.name = layer.name, .frozen = layer.frozen});
      if (layer.trained() > 0) layers.back().parameters = {layer.trained()};
    } else if (layers.empty()) {
      continue;  // its time counts for the first layer with parameters
    }
    layers.back().forward += forward > 0 ? layer.forward / forward : 0;
    layers.back().backward += backward > 0 ? layer.backward / backward : 0;
  }
  return layers;
}

// `within_host`: of the messages between replicas on one host.
static simulate::Network network_on_paper(const recipe::Recipe& recipe, const LayerCosts& costs,
                                          const std::vector<int>& balance,
                                          const std::vector<int>& rank_of_stage,
                                          const simulate::Link& link,
                                          const MessageCost& within_host) {
  simulate::Network network{.link = without_headers(link),
                            .hosts = hosts_on_paper(recipe.mesh, rank_of_stage)};
  if (is_on_cpu(costs)) network.in_first_part = simulate::in_first_part_on_cpu;
  if (recipe.mesh.parts() == 1) return network;
  std::size_t first = 0;
  for (std::size_t stage = 0; stage < balance.size(); ++stage) {
    std::vector<int> hosts;
    for (const auto& replica : network.hosts) hosts.push_back(replica[stage]);
    const std::size_t last = first + static_cast<std::size_t>(balance[stage]);
    network.stages.push_back(
        stage_traffic(recipe.mesh, traffic_layers(costs, first, last), hosts, within_host));
    first = last;
  }
  return network;
}

// A reduction of gradients of `bytes`. In rows of shards it is one over the row and one of the
// shards over the replicas; the rate is that of both together.
static MessageCost cost_of_reduction(const recipe::Recipe::Mesh& mesh, const HostTimes& times,
                                     double bytes) {
  const bool sharded = mesh.shard > 1 && mesh.shard_level != "none";
  const auto cost = [&](plan::Exchange kind, std::int64_t ranks, double size) {
    return cost_in_tables(times.tables, kind, static_cast<int>(ranks), size, times.replicas);
  };
  if (!sharded) return cost(plan::Exchange::AllReduce, mesh.parts(), bytes);
  MessageCost message = cost(plan::Exchange::ReduceScatter, mesh.shard, bytes);
  if (mesh.replicate < 2) return message;
  const double shard = bytes / static_cast<double>(mesh.shard);
  const double in_row = bytes * simulate::share_in_ring(mesh.shard);
  const double over_replicas = 2 * shard * simulate::share_in_ring(mesh.replicate);
  const MessageCost second = cost(plan::Exchange::AllReduce, mesh.replicate, shard);
  message.seconds_per_byte =
      (message.seconds_per_byte * in_row + second.seconds_per_byte * over_replicas) /
      (in_row + over_replicas);
  return message;
}

static double seconds_of_agreement(const recipe::Recipe::Mesh& mesh, const HostTimes& times) {
  constexpr Bytes bytes = 64;
  const auto ranks = static_cast<int>(mesh.parts());
  return seconds_of({.kind = MessageKind::AllReduce, .bytes = bytes}, ranks,
                    cost_in_tables(times.tables, plan::Exchange::AllReduce, ranks,
                                   static_cast<double>(bytes), times.replicas));
}

// The collectives of the replicas of a stage with the layers [first, last).
static void add_collectives(const recipe::Recipe& recipe, const LayerCosts& costs,
                            std::pair<std::size_t, std::size_t> layers,
                            schedule::Recompute recompute, const HostTimes& times,
                            simulate::StageCost* cost) {
  StageParameters parameters;
  int units = 0, trained_units = 0;
  for (const TrafficLayer& layer : traffic_layers(costs, layers.first, layers.second)) {
    parameters.trained += layer.trained();
    parameters.frozen += layer.frozen;
    ++units;
    trained_units += layer.trained() > 0 ? 1 : 0;
  }
  if (units_of(recipe.mesh).kind == UnitChoiceOfRecipe::Kind::Stage) units = trained_units = 1;
  const SentBytes sent =
      bytes_sent(recipe.mesh, parameters,
                 {.micro_batches = costs.sizes.micro_batches, .recompute = recompute});
  const auto ranks = static_cast<double>(std::max<std::int64_t>(1, recipe.mesh.pipeline) *
                                         recipe.mesh.ranks_of_stage());
  const Messages messages{
      .gather = std::max(units, 1),
      .reduce = messages_of_reduction(recipe.mesh, parameters.trained, trained_units),
      .agreements = agreements_of(recipe),
      .beside_backward = times.cores > 0 ? times.cores > ranks : !is_on_cpu(costs)};
  const bool gathers_all = recipe.mesh.shard_level == "parameters";
  const double gathered =
      static_cast<double>(parameters.trained + (gathers_all ? parameters.frozen : 0));
  // The messages of a stage are equally large here.
  add_communication(
      sent,
      DataMessageCosts{
          .reduce = cost_of_reduction(recipe.mesh, times,
                                      std::max(1.0, static_cast<double>(parameters.trained) /
                                                        std::max(messages.reduce, 1))),
          .gather = cost_in_tables(times.tables, plan::Exchange::AllGather,
                                   static_cast<int>(recipe.mesh.shard), gathered / messages.gather,
                                   times.replicas),
          .agreement = seconds_of_agreement(recipe.mesh, times)},
      messages, cost);
}

// The times on one host, which a network replaces between two hosts.
static void add_times_of_host(const recipe::Recipe& recipe, const LayerCosts& costs,
                              const std::vector<int>& balance, const HostTimes& times,
                              simulate::Costs* cut) {
  const auto modes = recompute_modes(recipe, balance.size());
  const auto tensor = static_cast<int>(recipe.mesh.tensor);
  for (std::size_t stage = 0; stage < cut->messages.size(); ++stage)
    simulate::set_message_times(
        [&](const LayerMessage& one) {
          return seconds_of(one, tensor,
                            cost_in_tables(times.tables, exchange_of(one.kind), tensor,
                                           static_cast<double>(one.bytes), times.tensor));
        },
        &cut->messages[stage], &cut->stages[stage]);
  if (stages_apart(recipe.mesh))
    for (simulate::RouteCost& route : cut->routes) {
      const auto bytes = static_cast<double>(route.bytes);
      const MessageCost message =
          cost_in_tables(times.tables, plan::Exchange::Send, 2, bytes, times.stages);
      route.seconds = message.seconds + message.seconds_per_byte * std::max(bytes, 1.0);
    }
  std::size_t first = 0;
  for (std::size_t stage = 0; stage < balance.size(); ++stage) {
    const std::size_t last = first + static_cast<std::size_t>(balance[stage]);
    Bytes trained = 0;
    for (std::size_t layer = first; layer < last; ++layer)
      trained += costs.profile.layers.at(layer).trained();
    const bool sharded = recipe.mesh.shard > 1 && recipe.mesh.shard_level != "none";
    cut->stages[stage].step = times.optimizer_seconds_per_byte * static_cast<double>(trained) /
                              static_cast<double>(sharded ? recipe.mesh.shard : 1);
    const bool on_several = cut->network && cut->network->stages.size() > stage &&
                            cut->network->stages[stage].hosts.size() > 1;
    if (recipe.mesh.parts() > 1 && !on_several)
      add_collectives(recipe, costs, {first, last}, modes[stage], times, &cut->stages[stage]);
    first = last;
  }
}

void add_message_times(const recipe::Recipe& recipe, const LayerCosts& costs,
                       const std::vector<int>& balance, const std::vector<int>& rank_of_stage,
                       const HostTimes& times, simulate::Costs* cut) {
  if (const auto link = link_of(recipe.mesh)) {
    if (stages_apart(recipe.mesh)) {
      cut->concurrency = simulate::Concurrency::EachRank;
      cut->transfer_mode = simulate::TransferMode::Prefetch;
    }
    cut->network = network_on_paper(recipe, costs, balance, rank_of_stage, *link, times.replicas);
  } else if (times.cores > 0) {
    cut->shared_cores = {.cores = times.cores,
                         .ranks_at_once = static_cast<double>(recipe.mesh.ranks_of_stage()),
                         .slowdown = std::clamp(times.slowdown, 1.0, times.cores)};
  }
  add_times_of_host(recipe, costs, balance, times, cut);
}

StepOnPaper step_on_paper(const recipe::Recipe& recipe, const LayerCosts& costs,
                          const std::vector<int>& balance, const UserParts& user_parts,
                          const HostTimes& times) {
  plan::CutCosts cut = costs_of_cut(recipe, costs, balance, user_parts);
  StepOnPaper step;
  step.table = lowered_table(recipe, cut.routes, costs.sizes.micro_batches,
                             recompute_modes(recipe, balance.size()));
  step.costs = std::move(cut.costs);
  add_message_times(recipe, costs, balance, ranks_of_stages(recipe, balance.size()), times,
                    &step.costs);
  if (const auto link = link_of(recipe.mesh)) step.network = words_of_network(recipe.mesh, *link);
  if (recipe.mesh.parts() > 1 && (step.costs.network || times.has_messages()))
    step.table = add_reductions(std::move(step.table));
  return step;
}

CutPrediction predict_cut(const recipe::Recipe& recipe, const LayerCosts& costs,
                          const std::vector<int>& balance, const UserParts& user_parts,
                          const HostTimes& times) {
  return predict_step_on_paper(recipe, costs, balance,
                               step_on_paper(recipe, costs, balance, user_parts, times));
}

CutPrediction predict_step_on_paper(const recipe::Recipe& recipe, const LayerCosts& costs,
                                    const std::vector<int>& balance, const StepOnPaper& paper) {
  CutPrediction prediction;
  prediction.network = paper.network;
  schedule::Timeline& step = prediction.timeline = simulate::simulate(paper.table, paper.costs);
  if (paper.costs.network && recipe.mesh.parts() > 1) {
    simulate::Costs without = paper.costs;
    without.network->stages.clear();
    prediction.communication_seconds =
        schedule::makespan(step) - schedule::makespan(simulate::simulate(paper.table, without));
  }
  std::vector<SteppedBytes> stepped(balance.size());
  std::size_t layer = 0;
  for (std::size_t stage = 0; stage < balance.size(); ++stage)
    for (int i = 0; i < balance[stage]; ++i, ++layer) {
      stepped[stage].trained += costs.profile.layers.at(layer).trained();
      stepped[stage].largest = std::max(stepped[stage].largest, costs.largest.at(layer));
    }
  add_optimizer_peaks(recipe, stepped, paper.costs, &step);
  return prediction;
}

}  // namespace trestle::train
