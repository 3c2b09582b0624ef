// The tensors that each rank of a sharded model writes to a checkpoint.
#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/flat_shard.h"
#include "trestle/optim/state.h"
#include "trestle/sharding/engine/shard_engine.h"
#include "trestle/sharding/save/local_shards.h"
#include "trestle/sharding/save/save.h"

namespace trestle::sharding {
namespace {

using checkpoint::TensorShard;

std::int64_t elements_of_whole(const LocalShard& shard) {
  std::int64_t count = 1;
  for (const std::int64_t size : shard.shape) count *= size;
  return count;
}

// Divides the writing of shards that several ranks hold: each shard goes to the rank with the
// fewest bytes so far. All ranks have the same list and come to the same result.
std::vector<bool> choose_mine(const std::vector<LocalShard>& shards, int rank) {
  std::map<std::pair<bool, int>, std::vector<std::int64_t>> bytes_of;  // by kind of shard
  std::vector<bool> mine;
  for (const LocalShard& shard : shards) {
    if (elements_of_whole(shard) == 0) {  // the shard is empty on all ranks
      mine.push_back(rank == 0);
      continue;
    }
    auto& bytes = bytes_of[{shard.is_whole, shard.copies}];
    bytes.resize(static_cast<std::size_t>(shard.copies));
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += static_cast<std::int64_t>(shard.tensor.nbytes());
    mine.push_back(least - bytes.begin() == shard.copy);
  }
  return mine;
}

class SaveGroups {
 public:
  explicit SaveGroups(const LocalShards& own)
      : own_(own), mine_(choose_mine(own.parameters, own.ranks.rank())) {
    for (std::size_t i = 0; i < own.parameters.size(); ++i) number_of_[own.parameters[i].name] = i;
  }

  void add_weights() {
    auto& weights = all["weights"];
    for (std::size_t i = 0; i < own_.parameters.size(); ++i)
      add(weights, i, own_.parameters[i].name, own_.parameters[i].tensor.detach());
    for (const auto& [name, tensor] : own_.buffers)
      if (own_.ranks.rank() == 0) weights.push_back({name, tensor});
  }

  // `value`: the number of steps, or a tensor that is sharded as the parameter is.
  void add_state(const std::string& parameter, const std::string& name, const at::Tensor& value) {
    const std::size_t i = number_of_.at(parameter);
    const LocalShard& shard = own_.parameters[i];
    auto& state = all["optimizer"];
    if (value.dim() > 0 || value.scalar_type() != at::kLong) return add(state, i, name, value);
    const bool has_first = shard.begin == 0 && shard.tensor.numel() > 0;
    if (mine_[i] && (shard.is_whole || has_first || elements_of_whole(shard) == 0))
      state.push_back({name, value});
  }

  void add_gradients() {
    auto& gradients = all["gradients"];
    for (std::size_t i = 0; i < own_.parameters.size(); ++i)
      if (const at::Tensor& gradient = own_.parameters[i].tensor.grad(); gradient.defined())
        add(gradients, i, own_.parameters[i].name, gradient);
  }

  checkpoint::TensorGroups all;

 private:
  void add(std::vector<TensorShard>& to, std::size_t i, const std::string& name,
           const at::Tensor& tensor) const {
    if (!mine_[i]) return;
    const LocalShard& shard = own_.parameters[i];
    if (shard.is_whole || elements_of_whole(shard) == 0) {
      to.push_back({name, tensor.view(shard.shape)});
      return;
    }
    for (TensorShard& box :
         checkpoint::boxes_of({name, tensor, shard.begin, shard.shape, shard.strides}))
      to.push_back(std::move(box));
  }

  const LocalShards& own_;
  std::vector<bool> mine_;
  std::map<std::string, std::size_t> number_of_;
};

checkpoint::TensorGroups groups_of_engine(const ShardEngine& engine,
                                          const torch::optim::Optimizer* optimizer,
                                          const SaveOptions& options) {
  const LocalShards own = local_shards(engine);
  if (own.has_unreduced_gradients)
    throw StateError("gradients of no_sync(), or of some micro-batches, wait to be reduced",
                     {.hint = "Save after the backward that reduces them."});
  SaveGroups groups(own);
  groups.add_weights();
  if (optimizer) {
    const auto names = optim::names_in(*optimizer, engine.stepped());
    for (const auto& [name, value] : optim::optimizer_state(*optimizer, names))
      groups.add_state(name.substr(0, name.rfind('.')), name, value);
  }
  if (options.gradients) groups.add_gradients();
  return std::move(groups.all);
}

}  // namespace

checkpoint::TensorGroups groups_to_save(const Sharded& sharded,
                                        const torch::optim::Optimizer* optimizer,
                                        const SaveOptions& options) {
  return groups_of_engine(sharded.engine_outside_of_join("save()"), optimizer, options);
}

checkpoint::TensorGroups groups_to_save(const ShardedParameters& sharded,
                                        const torch::optim::Optimizer* optimizer,
                                        const SaveOptions& options) {
  return groups_of_engine(sharded.engine(), optimizer, options);
}

}  // namespace trestle::sharding
