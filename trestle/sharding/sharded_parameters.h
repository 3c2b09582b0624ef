#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/nn/graph.h"
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
//   stage.end_backward();           // after each backward
//   stage.finish_reduction();       // after the last one
//   stage.reshard();                // until the next step
//
// The parameters are one unit, which unshard() gathers. Or they belong to layers: at level
// Parameters run_layer() then gathers the layers' units, and unshard() and reshard() enclose the
// micro-batches of one step.
//
// Gradients are summed over ranks, not averaged: the losses already carry each rank's share of the
// batch. Gradients that were in grad() before unshard() are added to the result once. All ranks
// make the same calls.
class ShardedParameters {
 public:
  // One unit, gathered when it is made: call reshard(). Throws UsageError for options that need a
  // model: units and reproducible.
  ShardedParameters(const NamedTensors& parameters, const NamedTensors& buffers,
                    const sharding::RankGroups& ranks, const ShardOptions& options = {});
  // The parameters of the layers [first, last) of a graph. At level Parameters each layer is a
  // unit, or ShardOptions::units joins layers to larger ones.
  ShardedParameters(const NamedTensors& parameters, const NamedTensors& buffers,
                    const nn::Graph& graph, int first, int last, const sharding::RankGroups& ranks,
                    const ShardOptions& options = {});
  ShardedParameters(ShardedParameters&&) noexcept;
  ShardedParameters& operator=(ShardedParameters&&) noexcept;
  ~ShardedParameters();

  void unshard();
  void reduce_next_backward();
  void end_backward();
  void finish_reduction();
  void reshard();
  // Instead of reshard(), after a step that failed: forgets its reductions and, above level None,
  // the gradients of its micro-batches. If a reduction had begun, all ranks' communication fails.
  void abandon();

  // Whether units are gathered around layers. Then all ranks run equal numbers of forwards and
  // backwards between unshard() and reshard(), in the same order.
  bool gathers_layers() const { return units_ != nullptr; }
  // Calls `forward` of the graph's layer `layer`. Before it gathers the layer's unit, and releases
  // it afterwards; the backward of the outputs does so too.
  using Forward = std::function<nn::Values(const nn::Values&)>;
  nn::Values run_layer(int layer, const nn::Values& arguments, const Forward& forward);
  // The value of a parameter that other stages use too, after unshard(): the parameter itself, or a
  // copy where units are gathered around layers. All ranks call it.
  at::Tensor whole(const at::Tensor& parameter);
  // Gathers and releases the units as a forward without a graph does on other ranks.
  void shadow_forward();

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
  void begin(const NamedTensors& parameters, const NamedTensors& buffers,
             const std::vector<std::size_t>& order);

  std::shared_ptr<sharding::ShardEngine> engine_;
  struct Units;
  std::shared_ptr<const Units> units_;  // null unless units are gathered around layers
};

}  // namespace trestle
