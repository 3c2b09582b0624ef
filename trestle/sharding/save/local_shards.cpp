#include "trestle/sharding/save/local_shards.h"

#include <map>

#include "trestle/sharding/engine/shard_engine.h"

namespace trestle::sharding {

LocalShards local_shards(const ShardEngine& engine) {
  const RankGroups& ranks = engine.ranks();
  const bool shards = engine.options().level != ShardLevel::None;
  std::map<std::string, std::pair<const FlatParameterGroup*, std::size_t>> places;
  LocalShards all{.ranks = ranks.all, .parameters = {}, .buffers = engine.buffers()};
  for (const auto& group : engine.groups()) {
    group->drop_zeroed();
    for (std::size_t i = 0; i < group->size(); ++i) {
      if (shards) places[group->name(i)] = {group.get(), i};
      all.has_unreduced_gradients |= group->has_accumulated(i);
    }
  }
  all.has_unreduced_gradients |= engine.reducer().micro_batches_done() > 0;
  for (const auto& [name, parameter] : engine.parameters()) {
    LocalShard own{.name = name,
                   .tensor = parameter,
                   .shape = parameter.sizes().vec(),
                   .strides = parameter.strides().vec(),
                   .copies = ranks.all.size(),
                   .copy = ranks.all.rank()};
    if (const auto place = places.find(name); place != places.end()) {
      const auto& [group, index] = place->second;
      own.tensor = group->shards()[index];
      own.is_whole = false;
      own.begin = group->layout().slice(index, group->shard_index()).begin;
      const bool replicates = ranks.replicate.valid();
      own.copies = replicates ? ranks.replicate.size() : 1;
      own.copy = replicates ? ranks.replicate.rank() : 0;
    }
    all.has_unreduced_gradients |= engine.reducer().has_unreduced() && parameter.grad().defined();
    all.parameters.push_back(std::move(own));
  }
  return all;
}

}  // namespace trestle::sharding
