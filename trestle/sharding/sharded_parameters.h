#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/sharding/engine/unsharded_scope.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/options/rank_groups.h"
#include "trestle/sharding/record/shard_report.h"

namespace trestle {

// Parameters owned by another component, such as a stage of one of several pipeline replicas.
// Sharded on the same engine as a Sharded, but the owner runs forwards and backwards and says when:
//
//   stage.unshard();                // before their first use in a step
//   stage.reduce_next_backward();   // before the last of several backwards, which accumulate
//   stage.finish_reduction();       // after it
//   stage.reshard();                // until the next step
//
// Gradients are summed over ranks, not averaged: the losses already carry each rank's share of the
// batch. Gradients that were in grad() before unshard() are added to the result once. All ranks
// make the same calls.
class ShardedParameters {
 public:
  // At level Parameters all parameters are one unit, gathered when it is made: call reshard().
  // Throws UsageError for options that need a model: units and reproducible.
  ShardedParameters(const NamedTensors& parameters, const NamedTensors& buffers,
                    const sharding::RankGroups& ranks, const ShardOptions& options = {});
  ShardedParameters(ShardedParameters&&) noexcept;
  ShardedParameters& operator=(ShardedParameters&&) noexcept;
  ~ShardedParameters();

  void unshard();
  void reduce_next_backward();
  void finish_reduction();
  void reshard();

  // As in Sharded (sharded.h).
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
  void zero_grad();
  using Unsharded = sharding::UnshardedScope;
  Unsharded unsharded();
  NamedTensors state();
  void load_state(const NamedTensors& state);
  void shards_changed();
  const ShardOptions& options() const;
  ShardReport report() const;

  // For trestle's own sources.
  sharding::ShardEngine& engine() const { return *engine_; }

 private:
  std::shared_ptr<sharding::ShardEngine> engine_;
};

}  // namespace trestle
