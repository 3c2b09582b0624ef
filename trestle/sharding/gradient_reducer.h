#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/backward_handshake.h"
#include "trestle/sharding/flat_parameter_group.h"
#include "trestle/sharding/gradient_hooks.h"
#include "trestle/sharding/micro_batch_sums.h"
#include "trestle/sharding/options.h"
#include "trestle/sharding/rank_groups.h"
#include "trestle/sharding/shard_recorder.h"

namespace trestle::sharding {

// What it takes to follow a backward: each parameter's gradient is put into its place in its group's buffer as soon as it
// is there, times this rank's share of the average; a group whose gradients are complete begins to be reduced while the
// backward goes on, in an order that is the same on all ranks; and when the backward ends, all of them are waited for and
// handed to the parameters (level None) or the shards.
//
// A "pass" is one backward: it begins with prepare_for_backward() in a hook of the backward, and ends by itself.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  // What else follows a backward: the gathering of parameters.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void gradients_complete(std::size_t group) = 0;  // of all its trained parameters
    virtual void backward_ended() = 0;  // before the pass does; not where it was given up
    virtual void pass_ended() = 0;
  };

  GradientReducer(std::vector<std::shared_ptr<FlatParameterGroup>> groups, RankGroups ranks,
                  const ShardOptions& options);
  void watch();  // hooks on the parameters; once
  // Buckets are averaged by it, at level None.
  void set_hook(AverageBucket hook) { hook_ = std::move(hook); }
  void set_recorder(ShardRecorder recorder);
  // Counts on from another one, which stops to listen.
  void go_on_from(GradientReducer& before);
  void set_observer(Observer* observer) { observer_ = observer; }
  // Throws StateError for a parameter that was moved or cast since watch().
  void check_watched() const;

  // Whether the backwards from here on are reduced; otherwise gradients add up on each rank.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }
  // This rank's weight in the average of the next backward, as a number of samples; without, all weigh the same. All
  // ranks give one, or none does.
  void set_weight(std::optional<double> weight) { weight_ = weight; }
  // The gradient with which such a backward begins, and what is there from before, times this rank's share: the ranks are
  // averaged as they are then. What crosses between ranks inside the backward, as in SyncBatchNorm, is weighted so too.
  at::Tensor weigh(const at::Tensor& gradient);

  // Gradients are summed over ranks as they are: the losses have their shares of the whole already.
  void sum_as_they_are() { sums_ = true; }
  // Who calls finish() later on waits there, and not at the end of the backward, for what is under way.
  void wait_in_finish() { waits_in_finish_ = true; }
  void finish();
  // With sums: what is in grad() already counts once, not once a rank. Set aside before a pass, it is added by finish();
  // put_back() does so where there was none.
  void set_aside();
  void put_back();

  // Called at the beginning of each pass that accumulates gradients: whether it is reduced, whether it has a weight, and
  // whether there are gradients of it already.
  using Announcer = std::function<void(bool sync, bool weighted, bool after_gradients)>;
  void set_announcer(Announcer announce) { announce_ = std::move(announce); }
  // Some ranks may have no samples in this backward, and follow the others.
  bool may_be_followed() const { return weight_.has_value() || announce_ != nullptr; }
  // Called when a backward is done, reduced or not.
  void set_after_pass(std::function<void()> call) { after_pass_ = std::move(call); }

  // To be called in a backward before its first gradient: begins the pass where it has not begun. A call of
  // autograd::grad() is a pass that nothing is reduced in, and StateError where it returns gradients of parameters.
  void prepare_for_backward(bool after_gradients = false);
  bool in_pass() const { return pass_.has_value(); }
  // Gives a pass up that did not come to its end, because something threw. The other ranks, which would wait for the rest of
  // it, are told.
  void give_up_pass();
  // A pass without a backward, around `meanwhile`: this rank has no samples, and nothing to add to what others reduce.
  void pass_without_samples(const std::function<void()>& meanwhile);
  // In it: the others' gradients of a group are complete about now. They wait for each other's reductions, so that they begin
  // in turn.
  void complete_without_gradients(std::size_t group);
  // The same for a loss that no trained parameter has a part in.
  void pass_without_gradients();

  std::int64_t steps() const { return steps_; }          // passes that were reduced
  std::int64_t backwards() const { return backwards_; }  // passes that have begun
  // Of the last pass that was reduced: in which order the first gradient of each parameter came, as (group, index).
  const std::vector<std::pair<std::size_t, std::size_t>>& observed_order() const {
    return observed_;
  }
  // With ShardOptions::reproducible: how many backwards of this step there were; and a step that begins anew.
  int pieces_done() const { return pieces_ ? pieces_->done() : 0; }
  void begin_step_anew();
  // Whether backwards since the last reduced one were not reduced.
  bool has_unreduced() const { return has_unreduced_; }
  // Seconds that the last reduced pass waited at its end; how many reductions there were, and of how many bytes.
  double waited() const { return waited_; }
  std::int64_t reductions() const { return reductions_; }
  Bytes reduced_bytes() const { return reduced_bytes_; }
  std::int64_t asked_for_unused() const { return asked_for_unused_; }
  Bytes reduced_over_replicas() const { return reduced_over_replicas_; }

 private:
  struct Reduction {  // of one group in a pass
    std::vector<bool> fired;
    std::vector<int> gradients;  // so many came
    std::size_t missing = 0;
    std::vector<at::Tensor> before =
        {};  // grad() where this rank weighs nothing: perhaps none does
    bool begun = false;
    at::Tensor reduced;      // this rank's piece
    comm::Work work;         // the half that is under way
    comm::Work over_pieces;  // the first half, within the ranks that divide it
    ShardRecorder::Entry entry;
    std::function<void()> hooked;  // waits for what the hook began
  };
  struct Pass {
    bool has_samples = true;
    bool accumulates = true;  // the parameters' gradients
    bool sync = false;
    bool more_pieces = false;  // of this rank come before anything is reduced
    bool in_backward = false;
    std::weak_ptr<void> backward;  // gone when the backward is, without end() where it threw
    std::vector<Reduction> groups;
    std::size_t next = 0;       // in the order of groups: the first that has not begun
    std::size_t next_over = 0;  // the first whose pieces are not summed over replicas yet
    BackwardHandshake header;
    ShardRecorder::Entry entry;
    std::optional<double> share;  // of this rank in the average
  };

  struct BackwardLife;

  void on_gradient(std::size_t group, std::size_t index);
  void keep_in_bucket(std::size_t group, std::size_t index);
  void put_gradient(std::size_t group, std::size_t index);
  bool fill(std::size_t group, std::size_t index);
  void begin_pass(bool accumulates = true, bool after_gradients = false);
  std::uint32_t trained_hash() const;
  std::int64_t place() const;
  double share();
  int averaged() const;  // how many gradients
  // How much of the average's division is left for behind the sum: 1, but for fp16.
  double post_divide_factor(std::size_t group) const;
  void begin_ready();
  void bound_in_flight();
  void begin(std::size_t group);
  void put_in_place(std::size_t group);
  void begin_over_replicas(bool wait);
  void begin_hook(std::size_t group);
  void end_hooks();
  void run_hook(int bucket, const std::function<void()>& call) const;
  double own_factor(std::size_t group);
  void end();
  void or_tell_others(const std::function<void()>& work);
  void leave_pass();
  void begin_all();
  void end_reduced();
  void fill_unused();
  bool is_unused(std::size_t group, std::size_t index) const;
  void count_gradient(std::size_t group, std::size_t index);
  void check_as_first_step() const;
  std::vector<std::vector<bool>> fired_on_any();
  void arm_late(std::size_t group, std::size_t index);
  void begin_piece();
  bool complete_pieces(std::size_t group);
  void end_piece();
  void give_up_pieces();
  std::vector<std::vector<bool>> used_by_any();
  void hand_out(const std::vector<std::vector<bool>>& used);

  std::vector<std::shared_ptr<FlatParameterGroup>> groups_;
  std::vector<std::size_t> trained_;  // groups that are reduced, in the order in which they are
  RankGroups ranks_;
  RankGroups unchecked_;  // for what follows the plan that all ranks have
  ShardOptions options_;
  std::optional<MicroBatchSums> pieces_;
  Observer* observer_ = nullptr;
  AverageBucket hook_;
  Announcer announce_;
  std::function<void()> after_pass_;
  ShardRecorder recorder_;
  GradientHooks hooks_;
  std::recursive_mutex mutex_;  // hooks may run in several devices' backward threads
  bool sync_ = true;
  bool sums_ = false;
  bool waits_in_finish_ = false;
  std::optional<double> weight_;
  std::optional<Pass> pass_;
  BackwardHandshake unchecked_header_;  // of the last pass, where that was inside no_sync()
  std::int64_t steps_ = 0;
  std::int64_t backwards_ = 0;
  bool has_unreduced_ = false;
  std::vector<std::pair<std::size_t, std::size_t>> observed_;
  std::vector<std::vector<at::Tensor>> aside_;  // [group][index]
  // UnusedParameters::Static: what the first step did with each parameter.
  struct FirstUse {
    std::optional<int> gradients;  // on this rank; not known where it had no samples
    bool on_any = false;           // it got one, on whatever rank
  };
  std::map<const void*, FirstUse> first_step_;
  double waited_ = 0;
  std::int64_t reductions_ = 0;
  Bytes reduced_bytes_ = 0;
  std::int64_t asked_for_unused_ = 0;
  Bytes reduced_over_replicas_ = 0;
};

}  // namespace trestle::sharding
