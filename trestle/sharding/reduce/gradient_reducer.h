#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/sharding/flat/flat_parameter_group.h"
#include "trestle/sharding/hooks/gradient_hooks.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/options/rank_groups.h"
#include "trestle/sharding/record/shard_recorder.h"
#include "trestle/sharding/reduce/backward_pass.h"
#include "trestle/sharding/reduce/reducer_stats.h"
#include "trestle/sharding/reduce/reduction_queue.h"
#include "trestle/sharding/reduce/set_aside_gradients.h"
#include "trestle/sharding/reduce/unused_parameter_tracker.h"

namespace trestle::sharding {

// Follows a model's backward passes and reduces their gradients over ranks.
//
// A hook copies each parameter's gradient, times this rank's share of the average, into its flat
// group's buffer. A complete group begins its reduction during the backward (reduction_queue.h). At
// the end of the backward all reductions are waited for, and the results go to the parameters
// (level None) or to the shards.
//
// A pass is one backward. It begins with prepare_for_backward(), which a hook of the backward
// calls, and ends by itself.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  // Code that follows the backward too: the unsharding of parameters.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void gradients_complete(std::size_t group) = 0;  // of all its trained parameters
    virtual void backward_ended() = 0;  // before pass_ended(); not called for an aborted pass
    virtual void pass_ended() = 0;
  };

  // The code that drives the passes.
  enum class Driver : std::uint8_t {
    Autograd,  // gradients are averaged; the end of the backward waits for the reductions
    Caller,    // gradients are summed: the losses carry each rank's share. finish() waits
  };

  GradientReducer(FlatParameterGroups groups, RankGroups ranks, const ShardOptions& options,
                  Driver driver = Driver::Autograd);
  void attach();  // adds the hooks to the parameters; once
  // Replaces the groups, with the same parameters, between two passes. Counters and settings stay.
  void rebuild(FlatParameterGroups groups);
  void set_recorder(ShardRecorder recorder);
  void set_observer(Observer* observer) { observer_ = observer; }
  // Throws StateError for a parameter that was moved or cast since attach().
  void check_attached() const;

  // Whether the next backwards are reduced. Otherwise gradients accumulate on each rank.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }
  // This rank's weight in the average of the next backward: its number of samples. Without one all
  // ranks weigh the same. All ranks give one, or none does.
  void set_weight(std::optional<double> weight) { weight_ = weight; }
  // Multiplies the backward's first gradient, and gradients from before, by this rank's share of
  // the weights, so that the plain average over ranks is right. Values that ranks exchange inside
  // the backward, as in SyncBatchNorm, are weighted by it too.
  at::Tensor apply_weight(const at::Tensor& gradient);

  // Driver::Caller: waits for the reductions of the last pass.
  void finish();
  // Driver::Caller, level None: takes gradients out of grad(), and adds them back after the next
  // reduction or now.
  void set_aside_gradients();
  void restore_gradients();

  // Called when a pass that accumulates gradients begins.
  struct Announcement {
    bool sync = false;
    bool weighted = false;
    bool after_gradients = false;  // some gradients of the pass came before
  };
  using Announcer = std::function<void(const Announcement&)>;
  void set_announcer(Announcer announce) { announce_ = std::move(announce); }
  // Some ranks may have no samples in this backward. They take part with zeros.
  bool ranks_may_lack_samples() const { return weight_.has_value() || announce_ != nullptr; }
  // Called at the end of a backward, reduced or not.
  void set_after_pass(std::function<void()> call) { after_pass_ = std::move(call); }

  // Begins the pass, if it has not begun. Called in a backward, before its first gradient where
  // that is possible. A call of autograd::grad() is a pass without reductions, and a StateError
  // where it returns gradients of parameters.
  enum class Moment : std::uint8_t { BeforeGradients, AfterFirstGradient };
  void prepare_for_backward(Moment moment = Moment::BeforeGradients);
  bool in_pass() const { return pass_.has_value(); }
  // Ends a pass whose backward threw. All ranks' communication fails: they would wait for the rest
  // of it.
  void abort_pass();
  // A pass without a backward, around `meanwhile`: this rank has no samples and reduces zeros.
  void pass_without_samples(const std::function<void()>& meanwhile);
  // In it: reduces zeros for a group at the time when the active ranks reduce it.
  void complete_without_gradients(std::size_t group);
  // A pass whose loss depends on no trained parameter.
  void pass_without_gradients();

  // The order in which the first gradients of the last reduced pass came, as (group, index).
  const std::vector<std::pair<std::size_t, std::size_t>>& observed_order() const {
    return observed_;
  }
  // With ShardOptions::reproducible: the number of micro-batches of this step that are done.
  int micro_batches_done() const;
  void restart_step();
  // Whether gradients since the last reduced backward wait to be reduced.
  bool has_unreduced() const { return has_unreduced_; }
  const ReducerStats& stats() const { return stats_; }

 private:
  class PassGuard;

  void on_gradient(std::size_t group, std::size_t index);
  void add_second_gradient(std::size_t group, std::size_t index);
  void prepare_late(std::size_t group, std::size_t index);
  void keep_in_bucket(std::size_t group, std::size_t index);
  void put_gradient(std::size_t group, std::size_t index);
  bool fill(std::size_t group, std::size_t index);
  void fill_missing();

  void begin_pass(GradientHooks::Use use, Moment moment);
  void begin_micro_batch();
  void begin_group(std::size_t group);
  void begin_ready();
  void begin_all();
  void end_micro_batch();
  void end_backward();
  void end_reduced();
  void hand_out(const std::vector<std::vector<bool>>& used);
  void hand_out_to_parameters(std::size_t group, const std::vector<bool>& used);
  void leave_pass();
  void forget_pass();
  void fail_all_ranks_if_throws(const std::function<void()>& work);

  std::uint32_t trained_hash() const;
  std::int64_t pass_number() const;
  double share();
  double own_factor(std::size_t group);

  FlatParameterGroup& group(std::size_t g) const { return *queue_.groups()[g]; }

  RankGroups ranks_;
  ShardOptions options_;
  Driver driver_;
  ReducerStats stats_;
  ReductionQueue queue_;
  UnusedParameterTracker unused_;
  SetAsideGradients set_aside_;
  Observer* observer_ = nullptr;
  Announcer announce_;
  std::function<void()> after_pass_;
  ShardRecorder recorder_;
  GradientHooks hooks_;
  std::recursive_mutex mutex_;  // hooks may run in several devices' backward threads
  bool sync_ = true;
  std::optional<double> weight_;
  std::optional<BackwardPass> pass_;
  RankHandshake unchecked_handshake_;  // of the last pass, if that was inside no_sync()
  bool has_unreduced_ = false;
  std::vector<std::pair<std::size_t, std::size_t>> observed_;
};

}  // namespace trestle::sharding
