#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/flat/flat_parameter_group.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/options/rank_groups.h"
#include "trestle/sharding/record/shard_recorder.h"
#include "trestle/sharding/reduce/bucket_hook.h"
#include "trestle/sharding/reduce/micro_batch_sums.h"
#include "trestle/sharding/reduce/reducer_stats.h"

namespace trestle::sharding {

// Reduces the flat groups' gradients over ranks during the backward. The order of reductions
// is the order of the groups, on all ranks: a group waits until the groups before it have begun.
//
// Level None all-reduces. The other levels reduce-scatter over the ranks that shard the model, and
// all-reduce each shard over its replicas. A communication hook averages whole gradients over all
// ranks instead, and above level None each rank then keeps its shard of them.
class ReductionQueue {
 public:
  // `stats` is updated and outlives the queue.
  ReductionQueue(FlatParameterGroups groups, RankGroups ranks, const ShardOptions& options,
                 ReducerStats& stats);
  void set_groups(FlatParameterGroups groups);  // between two backward passes
  void set_recorder(ShardRecorder recorder) { recorder_ = std::move(recorder); }

  const FlatParameterGroups& groups() const { return groups_; }
  const std::vector<std::size_t>& trained() const { return trained_; }  // the groups to reduce
  // With ShardOptions::reproducible; otherwise null.
  MicroBatchSums* micro_batch_sums() { return sums_ ? &*sums_ : nullptr; }
  const MicroBatchSums* micro_batch_sums() const { return sums_ ? &*sums_ : nullptr; }
  bool has_hook() const { return hook_.has_value(); }

  // The number of gradients that an average is over.
  int contributions() const;
  // fp16 gradients are divided twice, before and after the sum: this is the divisor after it. 1 for
  // other dtypes.
  double post_divide_factor(std::size_t group) const;

  // Step: the last micro-batch, or the only one, which reduces. MicroBatch: gradients are added up
  // on this rank.
  enum class Ends : std::uint8_t { MicroBatch, Step };
  void begin_pass(Ends ends);
  void end_pass();  // frees what the reductions hold
  bool begun(std::size_t group) const { return reductions_[group].begun; }
  // Begins the next groups for which is_complete(group).
  void begin_ready(const std::function<bool(std::size_t)>& is_complete);
  void begin_all();
  void wait();
  // After wait(): this rank's shard of the reduced gradients, above level None.
  const at::Tensor& reduced(std::size_t group) const { return reductions_[group].reduced; }

 private:
  struct Reduction {
    bool begun = false;
    at::Tensor reduced;      // this rank's shard
    comm::Work work;         // in flight
    comm::Work over_shards;  // the reduce-scatter
    ShardRecorder::Entry entry;
    std::function<void()> wait_for_hook;
    bool hook_is_done = false;
  };
  enum class Wait : std::uint8_t { No, Yes };

  void begin(std::size_t group);
  void begin_hook(std::size_t group);
  void finish_hook(std::size_t place);
  bool add_micro_batch(std::size_t group);
  void bound_in_flight();
  void put_in_place(std::size_t group);
  void wait_for(std::size_t group);
  void sum_over_replicas(Wait wait);

  FlatParameterGroups groups_;
  std::vector<std::size_t> trained_;
  RankGroups ranks_;
  RankGroups unchecked_;  // the same without fingerprints: all ranks have the same plan
  ShardOptions options_;
  ReducerStats& stats_;
  std::optional<BucketHook> hook_;
  std::optional<MicroBatchSums> sums_;
  ShardRecorder recorder_;

  Ends ends_ = Ends::Step;
  std::vector<Reduction> reductions_;   // one for each group
  std::size_t next_ = 0;                // in trained_: the first that has not begun
  std::size_t next_over_replicas_ = 0;  // the first whose shards are not summed over replicas yet
};

}  // namespace trestle::sharding
