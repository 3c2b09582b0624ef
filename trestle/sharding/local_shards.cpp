#include "trestle/sharding/local_shards.h"

#include <map>

#include "trestle/sharding/sharded_impl.h"

namespace trestle {

sharding::LocalShards Sharded::Impl::local_shards() const {
  using sharding::LocalShard;
  std::map<std::string, std::pair<const sharding::FlatParameterGroup*, std::size_t>> places;
  if (options.level != ShardLevel::None)
    for (const auto& group : groups_)
      for (std::size_t i = 0; i < group->size(); ++i) places[group->name(i)] = {group.get(), i};
  sharding::LocalShards all{.ranks = ranks_.all, .parameters = {}, .buffers = buffers_};
  for (const auto& group : groups_) {
    group->drop_zeroed();
    for (std::size_t i = 0; i < group->size(); ++i)
      all.has_unreduced_gradients |= group->has_kept(i);
  }
  all.has_unreduced_gradients |= reducer->pieces_done() > 0;
  for (const auto& [name, parameter] : parameters_) {
    LocalShard part{.name = name,
                    .tensor = parameter,
                    .shape = parameter.sizes().vec(),
                    .strides = parameter.strides().vec(),
                    .copies = ranks_.all.size(),
                    .copy = ranks_.all.rank()};
    if (const auto place = places.find(name); place != places.end()) {
      const auto& [group, index] = place->second;
      part.tensor = group->shards()[index];
      part.is_whole = false;
      part.begin = group->layout().part(index, group->piece()).begin;
      const bool repeats = ranks_.replicate.valid();
      part.copies = repeats ? ranks_.replicate.size() : 1;
      part.copy = repeats ? ranks_.replicate.rank() : 0;
    }
    all.has_unreduced_gradients |= reducer->has_unreduced() && parameter.grad().defined();
    all.parameters.push_back(std::move(part));
  }
  return all;
}

ShardProgress Sharded::Impl::progress() const {
  return {.steps = first_step_ + reducer->steps(),
          .forwards = forwards_of_ == reducer->steps() ? forwards_ : 0};
}

void Sharded::Impl::set_progress(const ShardProgress& progress) {
  first_step_ = progress.steps - reducer->steps();
  forwards_ = progress.forwards;
  forwards_of_ = reducer->steps();
}

}  // namespace trestle
