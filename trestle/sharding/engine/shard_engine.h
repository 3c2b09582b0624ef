#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/sharding/flat/flat_parameter_group.h"
#include "trestle/sharding/flat/group_builder.h"
#include "trestle/sharding/flat/mixed_precision.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/options/rank_groups.h"
#include "trestle/sharding/record/shard_record.h"
#include "trestle/sharding/record/shard_recorder.h"
#include "trestle/sharding/record/shard_report.h"
#include "trestle/sharding/reduce/gradient_reducer.h"
#include "trestle/sharding/reduce/rank_handshake.h"
#include "trestle/sharding/unshard/parameter_unsharder.h"

namespace trestle::sharding {

// The parameters of a model over the ranks: flat groups, the reduction of gradients, the gathering
// of parameters. Sharded adds a model's forward and backward to it, ShardedParameters the calls of
// an owner such as a pipeline stage.
//
// Construction has three steps: the constructor; at level Parameters a call of add_unit() for each
// unit; finish().
class ShardEngine {
 public:
  // Throws UsageError for options that contradict each other.
  ShardEngine(const ShardOptions& options, const RankGroups& ranks);
  ShardEngine(const ShardEngine&) = delete;
  ShardEngine& operator=(const ShardEngine&) = delete;
  ~ShardEngine();

  MixedPrecision& precision() { return precision_; }
  GroupBuilder& builder() { return builder_; }
  // Throws where the ranks' models differ, and copies rank 0's tensors to all ranks (if
  // options().broadcast.at_start).
  void start_from_rank_0(const NamedTensors& parameters, const NamedTensors& buffers) const;
  // Each tensor once. `unit_order`: the units in the order of a forward, if it is known.
  void finish(const NamedTensors& parameters, const NamedTensors& buffers,
              GradientReducer::Driver driver, const std::vector<std::size_t>& unit_order = {});

  const ShardOptions& options() const { return options_; }
  const RankGroups& ranks() const { return ranks_; }
  const NamedTensors& parameters() const { return parameters_; }  // the model's
  const NamedTensors& buffers() const { return buffers_; }
  // The tensors that an optimizer steps: trained parameters at level None, otherwise their shards.
  const NamedTensors& stepped() const { return stepped_; }
  const FlatParameterGroups& groups() const { return groups_; }
  const std::vector<Unit>& units() const { return units_; }
  const std::shared_ptr<GradientReducer>& reducer_pointer() const { return reducer_; }
  GradientReducer& reducer() { return *reducer_; }
  const GradientReducer& reducer() const { return *reducer_; }
  // At level Parameters; otherwise null.
  const std::shared_ptr<ParameterUnsharder>& unsharder() const { return unsharder_; }
  const ShardRecorder& recorder() const { return recorder_; }

  // Throws StateError for changes of the model that would give wrong gradients without an error.
  void check_unchanged() const;
  // Above level None: ends all ranks' communication, and throws, where a rank makes another call.
  void agree(RankHandshake::Call call) const;
  // Brings parameters and, from rank `buffers_from`, buffers up to date for a forward.
  void prepare_forward(int buffers_from);
  void broadcast_buffers(int from) const;

  void unshard();  // until reshard(); calls nest
  void reshard();
  void shards_changed();
  // Driver::Caller: forgets what a step that failed has begun: its reductions, and the gradients
  // of its micro-batches.
  void abandon_step();
  // Driver::Caller, before a step: drops unsharded gradients whose shards' gradients the optimizer
  // has cleared. A backward may begin with a gradient, which is then fresh.
  void drop_zeroed_gradients();
  void zero_grad();
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options) const;

  void start_recording();
  ShardRecord stop_recording();
  ShardReport report() const;
  std::string description() const;

 private:
  void check_not_written_twice() const;
  void rebuild_buckets();
  std::vector<std::size_t> observed_order() const;
  bool any_rank_stepped() const;
  void gather_stepped();
  void hand_out_recorder();
  NamedTensors shards_of(const NamedTensors& trained) const;

  ShardOptions options_;
  RankGroups ranks_;
  MixedPrecision precision_;
  GroupBuilder builder_;
  NamedTensors parameters_;
  NamedTensors trained_;  // those that were trained when the model was sharded
  NamedTensors stepped_;
  NamedTensors buffers_;
  FlatParameterGroups groups_;
  std::vector<Unit> units_;
  std::shared_ptr<GradientReducer> reducer_;
  std::shared_ptr<ParameterUnsharder> unsharder_;
  ShardRecorder recorder_;
  std::int64_t gathered_at_ = 0;  // the step at which parameters were last gathered; -1: outdated
  int unshards_ = 0;
  bool rebuilt_ = false;
};

// Each tensor under the first of its names.
NamedTensors each_once(const NamedTensors& named);

}  // namespace trestle::sharding
