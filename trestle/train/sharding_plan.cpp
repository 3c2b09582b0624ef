#include "trestle/train/sharding_plan.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/simulate/collective_traffic.h"

namespace trestle::train {
namespace {

constexpr Bytes largest_default_bucket = Bytes{25} << 20;

bool begins_with_digit(const std::string& word) {
  return !word.empty() && word.front() >= '0' && word.front() <= '9';
}

bool is_sharded(const recipe::Recipe::Mesh& mesh) {
  return mesh.shard > 1 && mesh.shard_level != "none";
}

int recomputed(int micro_batches, schedule::Recompute recompute) {
  switch (recompute) {
    case schedule::Recompute::Never:
      return 0;
    case schedule::Recompute::ExceptLast:
      return micro_batches - 1;
    case schedule::Recompute::Always:
      return micro_batches;
  }
  return 0;
}

bool belongs_to(const std::string& layer, const std::string& name) {
  return layer == name || layer.starts_with(name + ".");
}

// The memory of a stage's gradients on one rank, beside those that its backwards make.
struct GradientBytes {
  Bytes buckets = 0;    // flat buffers that the first step allocates and later ones keep
  Bytes reduced = 0;    // the rank's own shard, as it grows while a backward frees its graph
  Bytes in_flight = 0;  // buffers of the reductions that have begun, and of the one that fills
  // In the place of both after earlier backwards of the step: the shard of zeros that stands for
  // their gradients, and buffers beyond the gradients that the last one frees.
  Bytes after_earlier = 0;
};

// The last backward of a step moves each gradient to its bucket. Earlier backwards of the step keep
// theirs apart until then. Gradients that stay from batch to batch are all there from the start.
void add_gradients(const recipe::Recipe& recipe, const GradientBytes& bytes, Bytes trained,
                   int micro_batches, simulate::StageCost* cost) {
  if (recipe.train.accumulate > 1) {
    cost->gradients += bytes.buckets + bytes.reduced + bytes.in_flight;
    return;
  }
  cost->persistent += bytes.buckets;
  if (micro_batches > 1) {
    cost->gradients += bytes.after_earlier;
    return;
  }
  cost->gradients = std::max<Bytes>(0, cost->gradients - trained) + bytes.reduced;
  cost->transient_backward += bytes.in_flight + std::max<Bytes>(0, bytes.reduced - cost->saved);
  cost->transient_first_backward = cost->transient_backward;
  if (cost->transient_weight_grad) *cost->transient_weight_grad += bytes.in_flight;
  cost->transient_first_weight_grad.reset();  // it allocates cost->gradients
}

// Parameters and state are shards. Without a walk over the units, the largest one and a neighbour
// of its size are gathered all the time.
void size_units(const recipe::Recipe& recipe, const StageParameters& stage, int states,
                int micro_batches, simulate::StageCost* cost) {
  const Bytes trained = stage.trained;
  const Bytes shard = (trained + recipe.mesh.shard - 1) / recipe.mesh.shard;
  const bool keeps = reshard_ranks(recipe.mesh) == 1;
  const Bytes frozen_shard = (stage.frozen + recipe.mesh.shard - 1) / recipe.mesh.shard;
  const Bytes unit = std::min(trained + stage.frozen, stage.largest_unit);
  const Bytes unit_gradients = std::min(trained, unit);
  cost->persistent -= (1 + states) * (trained - shard) + stage.frozen - frozen_shard;
  cost->persistent += keeps ? trained + stage.frozen : 2 * unit;
  if (recipe.mesh.offload) cost->persistent -= (1 + states) * shard + frozen_shard;
  const Bytes reduced = recipe.mesh.offload ? 0 : shard;
  const bool walked = stage.largest_unit == 0 && trained > 0;
  if (walked && micro_batches == 1 && recipe.train.accumulate == 1) {
    cost->gradients = std::max<Bytes>(0, cost->gradients - trained) + reduced;
    return;
  }
  add_gradients(recipe,
                {.reduced = reduced,
                 .in_flight = 2 * unit_gradients,
                 .after_earlier = reduced + unit_gradients},
                trained, micro_batches, cost);
}

}  // namespace

UnitChoiceOfRecipe units_of(const recipe::Recipe::Mesh& mesh) {
  using Kind = UnitChoiceOfRecipe::Kind;
  const auto& words = mesh.units;
  if (words.empty() || words == std::vector<std::string>{"layers"}) return {};
  if (words == std::vector<std::string>{"stage"}) return {.kind = Kind::Stage};
  if (words.size() == 1 && begins_with_digit(words[0])) {
    try {
      return {.kind = Kind::Size, .bytes = parse_bytes(words[0])};
    } catch (const UsageError& error) {
      throw UsageError(text("'units' in [mesh]: ", error.what()));
    }
  }
  for (const char* const word : {"layers", "stage"})
    if (std::find(words.begin(), words.end(), word) != words.end())
      throw UsageError(text("'units' in [mesh] has \"", word, "\" beside other words"),
                       {.hint = "Give \"layers\", \"stage\", a size such as \"64MiB\", or the "
                                "names of layers."});
  return {.kind = Kind::Names, .names = words};
}

void check_unit_names(const recipe::Recipe::Mesh& mesh, const std::vector<std::string>& layers) {
  for (const std::string& name : units_of(mesh).names) {
    const bool may_be_type =
        !name.empty() && std::isupper(static_cast<unsigned char>(name[0])) != 0;
    if (may_be_type || name.find("::") != std::string::npos) continue;
    if (std::none_of(layers.begin(), layers.end(),
                     [&](const std::string& layer) { return belongs_to(layer, name); }))
      throw_unknown("unit", name, layers);
  }
}

int reshard_ranks(const recipe::Recipe::Mesh& mesh) {
  if (mesh.reshard == "yes") return 0;
  if (mesh.reshard == "no") return 1;
  int ranks = 0;
  const char* const end = mesh.reshard.data() + mesh.reshard.size();
  const auto [last, failure] = std::from_chars(mesh.reshard.data(), end, ranks);
  if (failure != std::errc() || last != end || ranks < 1 || mesh.shard % ranks != 0)
    throw UsageError(
        text("'reshard' = \"", mesh.reshard, "\" in [mesh]"),
        {.hint = text("Give \"yes\", \"no\", or a number that divides shard = ", mesh.shard, ".")});
  return ranks;
}

Bytes bucket_of(const recipe::Recipe::Mesh& mesh, Bytes trained) {
  if (mesh.bucket.empty()) return std::clamp<Bytes>(trained / 8, 1, largest_default_bucket);
  Bytes bytes = 0;
  try {
    bytes = parse_bytes(mesh.bucket);
  } catch (const UsageError& error) {
    throw UsageError(text("'bucket' in [mesh]: ", error.what()));
  }
  if (bytes == 0)
    throw UsageError("'bucket' in [mesh]: a bucket must have at least one byte",
                     {.hint = "Leave it out for the default."});
  return bytes;
}

std::vector<bool> unit_begins(const recipe::Recipe::Mesh& mesh,
                              const std::vector<LayerBytes>& layers) {
  using Kind = UnitChoiceOfRecipe::Kind;
  const UnitChoiceOfRecipe choice = units_of(mesh);
  std::vector<bool> begins;
  Bytes open = 0;
  const std::string* open_name = nullptr;
  for (const LayerBytes& layer : layers) {
    const auto chosen =
        std::find_if(choice.names.begin(), choice.names.end(),
                     [&](const auto& word) { return belongs_to(layer.name, word); });
    const std::string* const name = chosen == choice.names.end() ? nullptr : &*chosen;
    const bool starts_unit = choice.kind == Kind::Layers ||
                             (choice.kind == Kind::Size && open >= choice.bytes) ||
                             (name != nullptr && name != open_name);
    if (starts_unit) open = 0;
    if (choice.kind == Kind::Names) open_name = name;
    open += layer.bytes;
    begins.push_back(starts_unit);
  }
  return begins;
}

std::vector<plan::UnitMemory> memory_of_units(const recipe::Recipe::Mesh& mesh,
                                              const std::vector<LayerParameters>& layers) {
  if (!is_sharded(mesh) || mesh.shard_level != "parameters" || reshard_ranks(mesh) == 1 ||
      units_of(mesh).kind == UnitChoiceOfRecipe::Kind::Stage)
    return {};
  std::vector<LayerBytes> with_parameters;
  for (const LayerParameters& layer : layers)
    if (layer.trained + layer.frozen > 0)
      with_parameters.push_back({.name = layer.name, .bytes = layer.trained + layer.frozen});
  const std::vector<bool> begins = unit_begins(mesh, with_parameters);
  struct Unit {
    Bytes all = 0, trained = 0;
    std::size_t last_layer = 0;
  };
  // Empty units before and after those of the stage have no neighbour.
  std::vector<Unit> units(1);
  std::vector<std::size_t> unit_of_layer;  // for a layer without parameters the one before it
  auto begins_here = begins.begin();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Bytes all = layers[i].trained + layers[i].frozen;
    if (all > 0) {
      if (*begins_here++ || units.size() == 1) units.emplace_back();
      units.back().last_layer = i;
    }
    units.back().all += all;
    units.back().trained += layers[i].trained;
    unit_of_layer.push_back(units.size() - 1);
  }
  units.emplace_back();
  std::vector<plan::UnitMemory> memory;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::size_t u = unit_of_layer[i];
    const bool runs = u > 0 && i <= units[u].last_layer;
    const Bytes earlier = u > 0 ? units[u - 1].all : 0;
    const Bytes later_gradients = units[u + 1].trained;
    plan::UnitMemory one{.forward = units[u + 1].all, .backward = units[u].all};
    if (runs) {
      one.forward += units[u].all;
      one.backward += earlier + units[u].trained + std::max(units[u].trained, later_gradients);
    } else {
      one.backward += later_gradients;
    }
    memory.push_back(one);
  }
  return memory;
}

Bytes largest_unit(const recipe::Recipe::Mesh& mesh, const std::vector<LayerBytes>& layers) {
  const std::vector<bool> begins = unit_begins(mesh, layers);
  Bytes largest = 0, open = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (begins[i]) open = 0;
    open += layers[i].bytes;
    largest = std::max(largest, open);
  }
  return largest;
}

void size_sharded_state(const recipe::Recipe& recipe, const StageParameters& stage, int states,
                        int micro_batches, simulate::StageCost* cost) {
  const Bytes trained = stage.trained;
  if (recipe.mesh.parts() == 1) return;
  if (!is_sharded(recipe.mesh)) {
    // Gradients of the step's earlier batches stay apart from the buckets too.
    const Bytes earlier = recipe.train.accumulate > 1 ? trained : 0;
    return add_gradients(recipe, {.buckets = trained + earlier}, trained, micro_batches, cost);
  }
  cost->norm /= static_cast<double>(recipe.mesh.shard);
  cost->step /= static_cast<double>(recipe.mesh.shard);
  const std::string& level = recipe.mesh.shard_level;
  if (level == "parameters" && units_of(recipe.mesh).kind != UnitChoiceOfRecipe::Kind::Stage)
    return size_units(recipe, stage, states, micro_batches, cost);
  const Bytes shard = (trained + recipe.mesh.shard - 1) / recipe.mesh.shard;
  cost->persistent -= states * (recipe.mesh.offload ? trained : trained - shard);
  if (level == "parameters") cost->persistent += shard;  // beside the unsharded ones
  // Two reductions are on their way while a third bucket fills (ReductionQueue::bound_in_flight).
  // Their results are shards.
  const Bytes bucket = std::min(trained, std::max(stage.largest, bucket_of(recipe.mesh, trained)));
  const Bytes results = 2 * bucket / recipe.mesh.shard;
  if (level == "optimizer_state")
    return add_gradients(
        recipe, {.buckets = trained, .in_flight = results, .after_earlier = shard + results},
        trained, micro_batches, cost);
  add_gradients(recipe,
                {.reduced = shard,
                 .in_flight = std::min(trained, 3 * bucket),
                 .after_earlier = shard + bucket + results},
                trained, micro_batches, cost);
}

OptimizerStepBytes bytes_during_optimizer_step(const recipe::Recipe& recipe, Bytes trained,
                                               Bytes largest) {
  // Those in buckets are in the persistent memory.
  const Bytes apart = trained - kept_buckets(recipe, trained);
  if (!is_sharded(recipe.mesh)) return {apart, largest};
  const auto shard_of = [&](Bytes bytes) {
    return (bytes + recipe.mesh.shard - 1) / recipe.mesh.shard;
  };
  if (recipe.mesh.shard_level == "optimizer_state") return {apart, shard_of(largest)};
  return {shard_of(trained), shard_of(largest)};
}

Bytes kept_buckets(const recipe::Recipe& recipe, Bytes trained) {
  const auto& mesh = recipe.mesh;
  const bool keeps = !is_sharded(mesh) || mesh.shard_level == "optimizer_state";
  return keeps && mesh.parts() > 1 && recipe.train.accumulate == 1 ? trained : 0;
}

SentBytes bytes_sent(const recipe::Recipe::Mesh& mesh, const StageParameters& stage,
                     const StageRuns& runs) {
  const auto trained = static_cast<double>(stage.trained);
  if (!is_sharded(mesh)) return {.reduce = 2 * trained * simulate::share_in_ring(mesh.parts())};
  const double over_replicas =
      2 * trained / static_cast<double>(mesh.shard) * simulate::share_in_ring(mesh.replicate);
  const bool parameters = mesh.shard_level == "parameters";
  const double all = trained + (parameters ? static_cast<double>(stage.frozen) : 0);
  const double ring = simulate::share_in_ring(mesh.shard);
  SentBytes sent{
      .reduce = trained * ring + over_replicas, .first_gather = all * ring, .gathers = 1};
  sent.next_gather = sent.first_gather;
  const int neighbours = reshard_ranks(mesh);
  if (!parameters || units_of(mesh).kind == UnitChoiceOfRecipe::Kind::Stage || neighbours == 1)
    return sent;
  sent.gathers_in_each_run = true;
  sent.gathers = 2 * runs.micro_batches + recomputed(runs.micro_batches, runs.recompute);
  // Only the first gather is over all ranks; neighbours hold the parameters for the other ones.
  if (neighbours > 1) sent.next_gather = all * simulate::share_in_ring(neighbours);
  return sent;
}

int messages_of_reduction(const recipe::Recipe::Mesh& mesh, Bytes trained, int units) {
  if (is_sharded(mesh) && mesh.shard_level == "parameters") return units;
  return static_cast<int>(trained / bucket_of(mesh, trained)) + 1;
}

int agreements_of(const recipe::Recipe& recipe) {
  if (recipe.mesh.parts() < 2) return 0;
  constexpr int of_replicas = 4;
  return of_replicas + (is_sharded(recipe.mesh) && recipe.optimizer.clip_grad_norm > 0 ? 1 : 0);
}

double seconds_of(const LayerMessage& message, int ranks, const MessageCost& cost) {
  return cost.seconds + cost.seconds_per_byte * share_sent(message.kind, ranks) *
                            static_cast<double>(message.bytes);
}

void add_communication(const SentBytes& sent, const MessageCost& message, const Messages& messages,
                       simulate::StageCost* cost) {
  add_communication(
      sent, DataMessageCosts{.reduce = message, .gather = message, .agreement = message.seconds},
      messages, cost);
}

void add_communication(const SentBytes& sent, const DataMessageCosts& message,
                       const Messages& messages, simulate::StageCost* cost) {
  const double reduction =
      sent.reduce * message.reduce.seconds_per_byte + messages.reduce * message.reduce.seconds;
  const double hidden =
      messages.beside_backward ? 1 - 1 / static_cast<double>(std::max(1, messages.reduce)) : 0;
  cost->reduce = reduction - std::min(reduction, cost->backward) * hidden +
                 messages.agreements * message.agreement;
  if (sent.gathers == 0) return;
  const double gather =
      (sent.all() - sent.reduce) / sent.gathers * message.gather.seconds_per_byte +
      messages.gather * message.gather.seconds;
  if (!sent.gathers_in_each_run) {
    cost->unshard = gather;
    return;
  }
  for (double* const run : {&cost->forward, &cost->forward_no_graph, &cost->recompute,
                            &cost->backward, &cost->input_grad})
    *run += gather;
}

}  // namespace trestle::train
