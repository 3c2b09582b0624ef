#include "trestle/train/shard_traffic.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "trestle/simulate/collective_traffic.h"

namespace trestle::train {
namespace {

using simulate::Collective;
using simulate::CollectiveKind;
using simulate::StageTraffic;

constexpr Bytes largest_first_bucket = Bytes{1} << 20;
constexpr int reductions_in_flight = 2;  // sharding/reduce/reduction_queue.cpp

// The hosts of the groups that reduce and gather together.
class Groups {
 public:
  Groups(const recipe::Recipe::Mesh& mesh, const std::vector<int>& host_of_replica,
         const MessageCost& within_host)
      : within_host_(within_host), shards_(static_cast<int>(mesh.shard)) {
    const auto shard = static_cast<std::size_t>(mesh.shard);
    columns_.resize(shard);
    for (std::size_t replica = 0; replica < host_of_replica.size(); ++replica) {
      if (replica % shard == 0) rows_.emplace_back();
      rows_.back().push_back(host_of_replica[replica]);
      columns_[replica % shard].push_back(host_of_replica[replica]);
    }
    all_ = {host_of_replica};
  }

  Collective over_all(double bytes) const {
    return traffic_of(CollectiveKind::AllReduce, bytes, all_);
  }
  // Within the rows of HSDP's mesh, or over all ranks of a mesh without replicas.
  Collective over_shards(CollectiveKind kind, double bytes) const {
    Collective traffic = traffic_of(kind, bytes, rows_);
    if (traffic.bytes == 0 && shards_ > 1)
      traffic.seconds =
          within_host_.seconds + bytes * (shards_ - 1) / shards_ * within_host_.seconds_per_byte;
    return traffic;
  }
  Collective over_replicas(double bytes) const {
    return traffic_of(CollectiveKind::AllReduce, bytes, columns_);
  }
  // Gathers from each `neighbours` ranks beside each other in a row.
  Collective over_neighbours(double bytes, int neighbours) const {
    std::vector<std::vector<int>> groups;
    for (const auto& row : rows_)
      for (std::size_t at = 0; at < row.size(); at += static_cast<std::size_t>(neighbours))
        groups.emplace_back(row.begin() + static_cast<std::ptrdiff_t>(at),
                            row.begin() + static_cast<std::ptrdiff_t>(at) + neighbours);
    return traffic_of(CollectiveKind::AllGather, bytes, groups);
  }

 private:
  MessageCost within_host_;
  int shards_;
  std::vector<std::vector<int>> all_, rows_, columns_;
};

// A unit, or a bucket of gradients.
struct Part {
  double trained = 0;  // bytes, of its gradients too
  double frozen = 0;
  double forward = 0, backward = 0;

  double all() const { return trained + frozen; }
};

std::vector<Part> units_of_layers(const recipe::Recipe::Mesh& mesh,
                                  const std::vector<TrafficLayer>& layers) {
  std::vector<LayerBytes> named;
  for (const TrafficLayer& layer : layers)
    named.push_back({.name = layer.name, .bytes = layer.trained() + layer.frozen});
  const std::vector<bool> begins = unit_begins(mesh, named);
  std::vector<Part> units;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (i == 0 || begins[i]) units.emplace_back();
    units.back().trained += static_cast<double>(layers[i].trained());
    units.back().frozen += static_cast<double>(layers[i].frozen);
    units.back().forward += layers[i].forward;
    units.back().backward += layers[i].backward;
  }
  return units;
}

// The buckets of gradients, in the order in which a backward fills them (sharding/flat/buckets.h).
// A bucket also waits for the backwards of the frozen layers behind it.
std::vector<Part> buckets_of_layers(const recipe::Recipe::Mesh& mesh,
                                    const std::vector<TrafficLayer>& layers) {
  Bytes all = 0;
  for (const TrafficLayer& layer : layers) all += layer.trained();
  const Bytes limit = bucket_of(mesh, all);
  std::vector<Part> buckets;
  bool open = false;
  double waiting = 0;  // of the backward, until the next bucket
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    for (auto bytes = layer->parameters.rbegin(); bytes != layer->parameters.rend(); ++bytes) {
      if (!open) buckets.push_back({.backward = std::exchange(waiting, 0)});
      buckets.back().trained += static_cast<double>(*bytes);
      const Bytes most = buckets.size() == 1 ? std::min(largest_first_bucket, limit) : limit;
      open = buckets.back().trained < static_cast<double>(most);
    }
    const bool fills = open || !layer->parameters.empty();
    (fills ? buckets.back().backward : waiting) += layer->backward;
  }
  return buckets;
}

// The units whose gradients are reduced, in the order of a backward.
std::vector<Part> reduced_units(const std::vector<Part>& units) {
  std::vector<Part> reduced;
  double waiting = 0;
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    waiting += unit->backward;
    if (unit->trained == 0) continue;
    reduced.push_back(*unit);
    reduced.back().backward = std::exchange(waiting, 0);
  }
  return reduced;
}

// The shares after which each part's gradients are complete; the last is 1.
std::vector<double> ready_shares(const std::vector<Part>& parts) {
  std::vector<double> shares;
  double done = 0;
  for (const Part& part : parts) shares.push_back(done = std::min(1.0, done + part.backward));
  if (!shares.empty()) shares.back() = 1;
  return shares;
}

}  // namespace

Bytes TrafficLayer::trained() const {
  return std::accumulate(parameters.begin(), parameters.end(), Bytes{0});
}

StageTraffic stage_traffic(const recipe::Recipe::Mesh& mesh,
                           const std::vector<TrafficLayer>& layers,
                           const std::vector<int>& host_of_replica,
                           const MessageCost& within_host) {
  StageTraffic traffic;
  traffic.hosts = host_of_replica;
  std::sort(traffic.hosts.begin(), traffic.hosts.end());
  traffic.hosts.erase(std::unique(traffic.hosts.begin(), traffic.hosts.end()), traffic.hosts.end());
  if (traffic.hosts.size() < 2) return traffic;
  const Groups groups(mesh, host_of_replica, within_host);
  const bool shards = mesh.shard > 1 && mesh.shard_level != "none";
  const bool parameters = shards && mesh.shard_level == "parameters";
  const std::vector<Part> units = parameters ? units_of_layers(mesh, layers) : std::vector<Part>();
  const std::vector<Part> parts =
      parameters ? reduced_units(units) : buckets_of_layers(mesh, layers);
  const auto gather = [&](double bytes) {
    return groups.over_shards(CollectiveKind::AllGather, bytes);
  };
  if (parameters && units_of(mesh).kind != UnitChoiceOfRecipe::Kind::Stage) {
    const int neighbours = reshard_ranks(mesh);
    for (const Part& unit : units) {
      if (neighbours == 1) {
        traffic.unshard.push_back(gather(unit.all()));
        continue;
      }
      traffic.units.push_back({.gather = neighbours > 1
                                             ? groups.over_neighbours(unit.all(), neighbours)
                                             : gather(unit.all()),
                               .forward = unit.forward,
                               .backward = unit.backward});
    }
  } else if (shards) {
    for (const Part& part : parameters ? units : parts)
      traffic.unshard.push_back(gather(part.all()));
  }
  const std::vector<double> ready = ready_shares(parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Collective reduce =
        shards ? groups.over_shards(CollectiveKind::ReduceScatter, parts[i].trained) +
                     groups.over_replicas(parts[i].trained / static_cast<double>(mesh.shard))
               : groups.over_all(parts[i].trained);
    traffic.buckets.push_back({.reduce = reduce, .ready = ready[i]});
  }
  // The ranks of level none compare which parameters were used after their last reduction. With
  // shards another group does it meanwhile.
  if (!shards) traffic.end = groups.over_all(1);
  if (shards && !parameters && mesh.replicate == 1) traffic.most_in_flight = reductions_in_flight;
  return traffic;
}

}  // namespace trestle::train
