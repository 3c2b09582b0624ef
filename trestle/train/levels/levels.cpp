#include "trestle/train/levels/levels.h"

#include <torch/optim/optimizer.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/device.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/run_key.h"
#include "trestle/parallel/checkpoint_layers.h"
#include "trestle/recompute/checkpointed_segment.h"
#include "trestle/sharding/sharded.h"
#include "trestle/simulate/collective_traffic.h"

namespace trestle::train {
namespace {

constexpr int warm_up = 2;

void check_levels(const LevelsOptions& options) {
  if (options.ranks < 2 || options.ranks > most_virtual_devices)
    throw UsageError(
        text("cannot compare levels on ", options.ranks, " ranks"),
        {.hint = text("Choose a number of ranks from 2 to ", most_virtual_devices, ".")});
  if (options.replicate < 0 || (options.replicate > 0 && options.ranks % options.replicate != 0))
    throw UsageError(text("a mesh of ", options.replicate, " rows on ", options.ranks, " ranks"),
                     {.hint = "The rows of HSDP's mesh divide its ranks."});
  if (options.steps < 1) throw UsageError(text(options.steps, " steps cannot be measured"));
  if (options.batch < options.ranks)
    throw UsageError(text("a batch of ", options.batch, " on ", options.ranks, " ranks"),
                     {.hint = "Choose at least one sample for each rank."});
  if (!options.checkpoint.empty() && options.checkpoint_segments > 0)
    throw UsageError("both LevelsOptions::checkpoint and checkpoint_segments",
                     {.hint = "Name layers, or give a number of segments."});
  optim::check_options(options.optimizer);
}

Bytes bucket_of(const LevelsOptions& options, std::int64_t parameters) {
  if (options.bucket > 0) return options.bucket;
  return std::clamp<Bytes>(4 * parameters / 8, 1, ShardOptions().buckets.size);
}

ShardOptions shard_options(const LevelRow& row, const LevelsOptions& options,
                           std::int64_t parameters, at::Device device) {
  const Bytes bucket = bucket_of(options, parameters);
  ShardOptions chosen{
      .level = row.level,
      .device = device,
      .buckets = {.size = bucket, .first = std::min(bucket, ShardOptions().buckets.first)}};
  if (row.level == ShardLevel::Parameters) {
    chosen.units = options.units;
    chosen.reshard_after_forward = options.reshard_after_forward;
  }
  chosen.shards_on_cpu = options.shards_on_cpu && row.level != ShardLevel::None;
  chosen.checkpoint_segments = options.checkpoint_segments;
  if (!options.checkpoint.empty()) chosen.wrap_layers = checkpoint_layers(options.checkpoint);
  return chosen;
}

// The ranks that keep a unit together between forward and backward; 1 = each rank keeps all of it.
int neighbours_of(const LevelsOptions& options) {
  return std::max(1, options.reshard_after_forward.ranks());
}

double moved(const LevelRow& row, int neighbours, const ShardReport& before,
             const ShardReport& after, int steps) {
  const auto of = [&](Bytes ShardReport::*count) {
    return static_cast<double>(after.*count - before.*count) / steps;
  };
  if (row.level == ShardLevel::None)
    return 2 * simulate::share_in_ring(row.replicate) * of(&ShardReport::reduced);
  const double near = of(&ShardReport::gathered_from_neighbours);
  return simulate::share_in_ring(row.shard) *
             (of(&ShardReport::reduced) + of(&ShardReport::gathered) - near) +
         simulate::share_in_ring(neighbours) * near +
         2 * simulate::share_in_ring(row.replicate) * of(&ShardReport::reduced_over_replicas);
}

// The times that the formulas of a level's messages give.
// Bytes: of the trained weights, and of those that level Parameters gathers for a forward, and
// again for a backward.
struct SentWeights {
  double trained = 0;
  double forward = 0, backward = 0;
};

double seconds_on_link(const LevelRow& row, const SentWeights& weights, const simulate::Link& link,
                       int neighbours) {
  using simulate::CollectiveKind;
  const bool rows_share_hosts = row.replicate > 1 && row.shard > 1;
  std::vector<std::vector<int>> rows(static_cast<std::size_t>(row.replicate));
  std::vector<std::vector<int>> columns(static_cast<std::size_t>(row.shard));
  for (int rank = 0; rank < row.replicate * row.shard; ++rank) {
    const int host = rows_share_hosts ? rank / row.shard : rank;
    rows[static_cast<std::size_t>(rank / row.shard)].push_back(host);
    columns[static_cast<std::size_t>(rank % row.shard)].push_back(host);
  }
  std::vector<simulate::Collective> all = {
      traffic_of(CollectiveKind::AllReduce, weights.trained / row.shard, columns)};
  const bool shards_parameters = row.level == ShardLevel::Parameters;
  if (row.level != ShardLevel::None) {
    all.push_back(traffic_of(CollectiveKind::ReduceScatter, weights.trained, rows));
    all.push_back(traffic_of(CollectiveKind::AllGather,
                             shards_parameters ? weights.forward : weights.trained, rows));
  }
  if (shards_parameters && neighbours != 1)
    all.push_back(traffic_of(CollectiveKind::AllGather, weights.backward, rows));
  double seconds = 0;
  for (const simulate::Collective& one : all)
    seconds += link.seconds(one.bytes / link.both_ways) + one.latencies * link.latency;
  return seconds;
}

double middle(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// The model in one process, or its slices on one of the tensor ranks.
class PlainModel {
 public:
  PlainModel(nn::Layers layers, const LevelsOptions& options,
             const tensor_parallel::TensorRanks& shared = {})
      : layers_(std::move(layers)), run_(run_of(layers_, options, shared)) {}

  at::Tensor forward(const at::Tensor& input, const nn::RunKey* key = nullptr) const {
    return run_.run_model({input}, key)[0];
  }
  std::vector<at::Tensor> parameters() const { return layers_.parameters(); }

 private:
  static nn::CheckpointedSegment run_of(const nn::Layers& layers, const LevelsOptions& options,
                                        const tensor_parallel::TensorRanks& shared) {
    nn::Graph graph = layers.graph();
    if (!options.checkpoint.empty())
      checkpoint_layers(options.checkpoint, {.split_arguments = shared})(graph);
    const int last = static_cast<int>(graph.layers.size());
    return {std::make_shared<const nn::Graph>(std::move(graph)),
            nn::cut_evenly({.first = 0, .last = last}, options.checkpoint_segments)};
  }

  nn::Layers layers_;
  nn::CheckpointedSegment run_;
};

// The plain model, or the model in the engine, with what a step needs of either.
struct Trained {
  std::optional<PlainModel> plain = {};
  std::optional<Sharded> sharded = {};
  // With tensor ranks.
  tensor_parallel::TensorRanks ranks = {};
  std::optional<nn::Loss> loss = {};
  nn::RunKey key = {};  // equal on all of them: they draw one model's dropout masks

  // The trained parameters, or this rank's shards of them.
  std::vector<at::Tensor> stepped() const {
    if (sharded) return sharded->parameters();
    std::vector<at::Tensor> all = plain->parameters();
    std::erase_if(all, [](const at::Tensor& one) { return !one.requires_grad(); });
    return all;
  }
  void forward_and_backward(const at::Tensor& input, bool even) {
    if (loss) {
      ++key.step;
      return loss->value(plain->forward(input, &key), input).backward();
    }
    if (!sharded) return plain->forward(input).square().mean().backward();
    const at::Tensor loss = sharded->forward(input).square().mean();
    sharded->backward(
        loss, even ? std::nullopt : std::optional<double>(static_cast<double>(input.size(0))));
  }
  ShardReport report() const { return sharded ? sharded->report() : ShardReport(); }
};

Trained make_level(const LevelRow& row, const MakeNet& make_net, const LevelsOptions& options,
                   const World& world, at::Device device, std::int64_t parameters) {
  Trained trained;
  if (row.tensor > 1) {
    trained.ranks = tensor_parallel::TensorRanks(world.group());
    nn::Layers net = options.tensor->make(trained.ranks);
    net.to(device);
    trained.plain.emplace(
        net, options,
        options.tensor->splits_recomputed ? trained.ranks : tensor_parallel::TensorRanks());
    trained.loss = options.tensor->loss(trained.ranks);
    return trained;
  }
  nn::Layers net = make_net();
  if (row.preset.empty()) {
    net.to(device);
    trained.plain.emplace(net, options);
    return trained;
  }
  std::vector<mesh::Dimension> dimensions;
  if (row.replicate > 1) dimensions.push_back({"replicate", row.replicate});
  if (row.shard > 1) dimensions.push_back({"shard", row.shard});
  const DeviceMesh mesh(world, dimensions);
  trained.sharded.emplace(net, mesh, shard_options(row, options, parameters, device));
  return trained;
}

LevelRow::Measured train(const LevelRow& row, const MakeNet& make_net,
                         const std::vector<std::int64_t>& sizes, const LevelsOptions& options,
                         std::int64_t parameters, const World& world) {
  const at::Device device(at::kPrivateUse1, static_cast<at::DeviceIndex>(world.rank()));
  const Bytes before = memory_usage(device).current;
  std::vector<std::int64_t> share(sizes.size() + 1);
  const int parts = row.replicate * row.shard;  // of the batch
  share[0] = options.batch / parts + (world.rank() < options.batch % parts ? 1 : 0);
  std::copy(sizes.begin(), sizes.end(), share.begin() + 1);
  // Tensor ranks have one batch.
  const auto seed = static_cast<std::uint64_t>(row.tensor > 1 ? 1 : 1 + world.rank());
  const auto random = at::detail::createCPUGenerator(seed);
  const at::Tensor input = (options.ids > 0 ? at::randint(options.ids, share, random, at::kLong)
                                            : at::rand(share, random))
                               .to(device);
  Trained trained = make_level(row, make_net, options, world, device, parameters);
  const auto optimizer = optim::make_optimizer(trained.stepped(), options.optimizer);
  LevelRow::Measured measured;
  std::vector<double> seconds;
  ShardReport first;
  Traffic before_steps;
  for (int step = 0; step < warm_up + options.steps; ++step) {
    if (step == warm_up) {
      first = trained.report();
      before_steps = trained.ranks.traffic();
      reset_peak_memory(device);
    }
    const Stopwatch watch;
    optimizer->zero_grad();
    trained.forward_and_backward(input, options.batch % parts == 0);
    optimizer->step();
    if (step >= warm_up) seconds.push_back(watch.seconds());
  }
  const MemoryUsage usage = memory_usage(device);
  measured.rest = usage.current - before - static_cast<Bytes>(input.nbytes());
  measured.peak = usage.peak - before;
  measured.seconds = middle(seconds);
  measured.moved = row.tensor > 1
                       ? (trained.ranks.traffic() - before_steps).sent(row.tensor) / options.steps
                       : moved(row, neighbours_of(options), first, trained.report(), options.steps);
  return measured;
}

}  // namespace

int optimizer_states(const optim::OptimizerOptions& optimizer) {
  if (optimizer.name == "adam" || optimizer.name == "adamw") return optimizer.amsgrad ? 3 : 2;
  const int squares = optimizer.name == "rmsprop" ? 1 : 0;
  return squares + (optimizer.momentum > 0 ? 1 : 0) + (optimizer.centered ? 1 : 0);
}

LevelsWeights weights_of(const nn::Layers& model) {
  const nn::Graph graph = model.graph();
  std::set<std::pair<int, std::string>> used_later;  // tied ones
  bool trained_before = false;
  LevelsWeights weights;
  for (const auto& tie : graph.ties) used_later.insert(nn::owner_of(graph, tie));
  for (std::size_t layer = 0; layer < graph.layers.size(); ++layer) {
    const auto named = graph.layers[layer].named_parameters();
    trained_before |= std::any_of(named.begin(), named.end(),
                                  [](const auto& one) { return one.second.requires_grad(); });
    for (const auto& [name, parameter] : named) {
      if (parameter.requires_grad()) {
        weights.trained += parameter.numel();
        continue;
      }
      const auto bytes = static_cast<Bytes>(parameter.nbytes());
      weights.frozen += parameter.numel();
      weights.frozen_bytes += bytes;
      if (!trained_before && !used_later.contains({static_cast<int>(layer), name}))
        weights.frozen_first_bytes += bytes;
    }
  }
  return weights;
}

namespace {

// The bytes of a level's trained parameters, each: those that every rank holds, and those of which
// it holds a share.
struct PerParameter {
  int whole = 0, divided = 0;

  std::string words(const char* ranks) const {
    if (divided == 0) return text(whole);
    return whole == 0 ? text(divided, ranks) : text(whole, " + ", divided, ranks);
  }
};

LevelRow::Formula formula_of(const LevelRow& row, const PerParameter& each,
                             const LevelsWeights& weights, const LevelsOptions& options) {
  const bool shards_parameters = row.level == ShardLevel::Parameters;
  const auto frozen = static_cast<double>(weights.frozen_bytes);
  const double trained = 4.0 * static_cast<double>(weights.trained);
  const SentWeights sent{
      .trained = trained,
      .forward = trained + frozen,
      .backward = trained + frozen - static_cast<double>(weights.frozen_first_bytes)};
  LevelRow::Formula formula;
  formula.rest = static_cast<double>(weights.trained) *
                     (each.whole + static_cast<double>(each.divided) / row.shard) +
                 (shards_parameters ? frozen / row.shard : frozen);
  const double ring = simulate::share_in_ring(row.shard);
  const double over_replicas = 2 * trained / row.shard * simulate::share_in_ring(row.replicate);
  if (row.level == ShardLevel::None) {
    formula.moved = 2 * trained * simulate::share_in_ring(row.replicate);
  } else if (!shards_parameters) {
    formula.moved = 2 * trained * ring + over_replicas;
  } else {
    // A backward may gather parameters from fewer ranks, or from none.
    const bool keeps_near =
        !options.reshard_after_forward.to_all() && neighbours_of(options) < row.shard;
    const double again = keeps_near ? simulate::share_in_ring(neighbours_of(options)) : ring;
    formula.moved = (trained + sent.forward) * ring + sent.backward * again + over_replicas;
  }
  if (options.link)
    formula.link_seconds = seconds_on_link(row, sent, without_headers(*options.link),
                                           options.reshard_after_forward.ranks());
  return formula;
}

// The first rank has the largest slices.
LevelRow row_of_tensor_ranks(const LevelsOptions& options, int states) {
  const int n = options.ranks;
  LevelRow row;
  row.name = "tensor";
  row.ranks = row.tensor = n;
  row.per_parameter = text(8 + states, "/N");
  const LevelsWeights held =
      weights_of(options.tensor->make(tensor_parallel::TensorRanks::on_paper(0, n)));
  row.formula.rest =
      static_cast<double>(held.trained) * (8 + states) + static_cast<double>(held.frozen_bytes);
  const Traffic traffic = options.tensor->traffic.sum();
  row.formula.moved = traffic.sent(n);
  if (!options.link) return row;
  std::vector<std::vector<int>> hosts(1);
  for (int rank = 0; rank < n; ++rank) hosts[0].push_back(rank);
  const simulate::Link link = without_headers(*options.link);
  const auto add = [&](simulate::CollectiveKind kind, const MessageCount& count) {
    const auto all = traffic_of(kind, static_cast<double>(count.bytes), hosts);
    row.formula.link_seconds += link.seconds(all.bytes / link.both_ways) +
                                static_cast<double>(count.calls) * all.latencies * link.latency;
  };
  add(simulate::CollectiveKind::AllReduce, traffic.all_reduce);
  add(simulate::CollectiveKind::AllGather, traffic.all_gather);
  add(simulate::CollectiveKind::ReduceScatter, traffic.reduce_scatter);
  return row;
}

}  // namespace

std::vector<LevelRow> levels_on_paper(std::int64_t parameters, const LevelsOptions& options) {
  return levels_on_paper(LevelsWeights{.trained = parameters}, options);
}

std::vector<LevelRow> levels_on_paper(const LevelsWeights& weights, const LevelsOptions& options) {
  check_levels(options);
  if (weights.trained < 1)
    throw UsageError("the model has no trained parameters",
                     {.hint = "Levels differ in gradients and optimizer state: train a layer."});
  const int n = options.ranks, states = 4 * optimizer_states(options.optimizer);
  std::vector<LevelRow> rows;
  const auto add = [&](const std::string& name, const char* preset, ShardLevel level, int replicate,
                       int shard, PerParameter each) {
    LevelRow row;
    row.name = name, row.preset = preset, row.level = level;
    row.ranks = replicate * shard, row.replicate = replicate, row.shard = shard;
    row.per_parameter = each.words(replicate > 1 ? "/S" : "/N");
    row.formula = formula_of(row, each, weights, options);
    rows.push_back(row);
  };
  add("plain", "", ShardLevel::None, 1, 1, {8 + states, 0});
  add("DDP", "ddp.h", ShardLevel::None, n, 1, {8 + states, 0});
  add("ZeRO-1", "zero1.h", ShardLevel::OptimizerState, 1, n, {8, states});
  add("ZeRO-2", "zero2.h", ShardLevel::Gradients, 1, n, {4, 4 + states});
  add("ZeRO-3, FSDP", "fsdp.h", ShardLevel::Parameters, 1, n, {0, 8 + states});
  const int rows_of_mesh = options.replicate > 0 ? options.replicate : n > 2 && n % 2 == 0 ? 2 : 0;
  if (rows_of_mesh > 1 && rows_of_mesh < n)
    add(text("HSDP ", rows_of_mesh, " x ", n / rows_of_mesh), "hsdp.h", ShardLevel::Parameters,
        rows_of_mesh, n / rows_of_mesh, {0, 8 + states});
  if (options.tensor) rows.push_back(row_of_tensor_ranks(options, states));
  return rows;
}

std::vector<LevelRow> measure_levels(const MakeNet& make_net,
                                     const std::vector<std::int64_t>& input,
                                     const LevelsOptions& options,
                                     const std::function<void(const LevelRow&)>& done) {
  check_levels(options);
  install_virtual_devices({.count = options.ranks});
  const LevelsWeights weights = weights_of(make_net());
  std::vector<LevelRow> rows = levels_on_paper(weights, options);
  for (LevelRow& row : rows) {
    const auto each = spawn(row.ranks, [&](World& world) {
      return train(row, make_net, input, options, weights.trained, world);
    });
    for (const LevelRow::Measured& one : each) {
      row.measured.rest = std::max(row.measured.rest, one.rest);
      row.measured.peak = std::max(row.measured.peak, one.peak);
      row.measured.moved = std::max(row.measured.moved, one.moved);
      row.measured.seconds = std::max(row.measured.seconds, one.seconds);
    }
    if (done) done(row);
  }
  return rows;
}

}  // namespace trestle::train
