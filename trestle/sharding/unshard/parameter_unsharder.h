#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/flat/flat_parameter_group.h"
#include "trestle/sharding/flat/unit.h"
#include "trestle/sharding/options/rank_groups.h"
#include "trestle/sharding/reduce/gradient_reducer.h"
#include "trestle/sharding/unshard/unit_order.h"

namespace trestle::sharding {

// Level Parameters: gathers a unit's parameters before its forward and before its backward, one
// unit ahead of the model. Releases them after the forward (unless reshard_after_forward is false),
// and in the backward when all gradients of the parameters and of the unit's inputs are there.
//
// A group may belong to several units, where layers share a parameter: it is released when no unit
// needs it. A unit that is recomputed inside a backward (activation checkpointing) only gathers:
// the backward releases.
//
// With Driver::Caller the units are the layers of a pipeline's stage, in a known order. Between
// begin_use() and end_use() the stage runs the forwards of several micro-batches, with a graph or
// without one, and a backward of each in any order. All ranks run equal numbers of both in the same
// order.
class ParameterUnsharder final : public GradientReducer::Observer,
                                 public std::enable_shared_from_this<ParameterUnsharder> {
 public:
  ParameterUnsharder(FlatParameterGroups groups, std::vector<Unit> units, const RankGroups& ranks,
                     std::shared_ptr<GradientReducer> reducer, const ShardOptions& options,
                     GradientReducer::Driver driver);

  // One forward of a unit. A call that is destroyed without end(), because the forward threw,
  // releases the parameters.
  class Call;
  // Gathers, and returns when the parameters are there. Replaces inputs that need a gradient by
  // views.
  std::shared_ptr<Call> begin(std::size_t unit, std::vector<at::Tensor>& inputs);
  // Keep: the next call is of the same unit. May replace outputs by views.
  enum class After : std::uint8_t { Release, Keep };
  void end(const std::shared_ptr<Call>& call, std::vector<at::Tensor>& outputs,
           After after = After::Release);

  void begin_model();  // the next unit is the model's first one
  void end_model();    // the end of that forward
  // The units of the layers in the order of a forward, if it is known before the first one.
  void expect(const std::vector<std::size_t>& units);
  // On a rank without samples: gathers what the active ranks gather in a forward and in a backward.
  void shadow_forward();
  void shadow_backward();
  // Driver::Caller, around the micro-batches of a step or an evaluation. The shards may have
  // changed before.
  void begin_use();
  void end_use();
  // Driver::Caller, after each backward, also one that computed no gradient here: other ranks may
  // have gathered units in it.
  void end_stage_backward();
  void set_recorder(ShardRecorder recorder);
  // A copy of the parameter as the shards are now. All ranks call it, between forwards.
  at::Tensor whole(const at::Tensor& parameter);
  void unshard_all();  // until reshard_all(); calls nest
  void reshard_all();
  // The shards may have changed: releases gathered parameters, or gathers them again after
  // unshard_all().
  void refresh();

  void gradients_complete(std::size_t group) override;
  void backward_ended() override;
  void pass_ended() override;

 private:
  using Event = UnitOrder::Event;
  struct GroupState {
    int holders = 0;        // running forwards, and backwards that wait for inputs' gradients
    bool complete = false;  // all gradients of this backward are there
  };
  enum class Direction : std::uint8_t { Forward, Backward };
  struct GatherGroups {  // with fingerprints, and without once all ranks follow a known plan
    comm::Group checked, unchecked;
    const comm::Group& choose(comm::Check check) const {
      return check == comm::Check::Off ? unchecked : checked;
    }
  };

  void gather(std::size_t unit);
  void gather_ahead(std::size_t place, Direction direction);
  void gather_skipped(std::size_t until);
  void gather_whole_pass();
  void wait(std::size_t unit);
  void release(std::size_t group);
  bool in_last_backward() const;
  void release_until_backward(std::size_t group);

  void begin_alone(std::size_t unit);
  void note_begin(Call& call);
  void watch_inputs(const std::shared_ptr<Call>& call, std::vector<at::Tensor>& inputs);
  void watch_output(const std::shared_ptr<Call>& call, const at::Tensor& output);
  bool records_order() const;
  comm::Check check() const;
  bool runs_stage() const { return driver_ == GradientReducer::Driver::Caller; }

  void begin_backward(const std::shared_ptr<Call>& call);
  void note_recomputation(std::size_t unit);
  void input_done(const std::shared_ptr<Call>& call);
  void note_backward();
  bool has_backward(std::size_t place) const;
  bool orders_differ() const;
  std::size_t last_place(std::size_t group) const;
  bool comes_again(std::size_t group) const;

  FlatParameterGroups groups_;
  std::vector<Unit> units_;
  GatherGroups all_;
  GatherGroups neighbours_;  // of reshard_after_forward = k
  std::weak_ptr<GradientReducer> reducer_;
  bool reshard_;
  GradientReducer::Driver driver_;
  bool may_skip_units_;                // a backward may leave units out, on some ranks
  bool in_use_ = false;                // between begin_use() and end_use()
  bool stage_backward_ended_ = false;  // since end_stage_backward()
  int unshards_ = 0;                   // calls of unshard_all()
  std::recursive_mutex mutex_;
  std::vector<GroupState> states_;
  std::vector<std::shared_ptr<Call>> in_backward_;
  std::weak_ptr<Call> model_call_;  // of unit 0, in the last forward
  UnitOrder order_;
  bool in_training_forward_ = false;  // of the model
  bool shadows_backward_ = false;     // inside shadow_backward()
  ShardRecorder recorder_;
  ShardRecorder::Entry backward_entry_;  // of the unit whose backward runs
  bool recomputed_together_ = false;     // several units, in one checkpointed function
  std::uint64_t checkpointed_in_ = 0;    // the last checkpointed function that ran a unit

  struct PassState {                     // places are those of order_
    int forwards = 0;                    // training forwards since the last pass
    std::optional<std::size_t> now;      // of the unit whose backward began last
    std::optional<std::size_t> skipped;  // places from here on are done
    std::vector<bool> seen;
    std::vector<std::size_t> completed_at;  // for each group
    bool shadowed = false;                  // by shadow_backward()
    bool gathers_all = false;               // all groups stay gathered until the pass ends
  };
  PassState pass_;
  // Recorded from earlier backwards; empty before the first.
  std::vector<bool> used_;                 // for each place, in any of them
  std::vector<std::size_t> completed_at_;  // for each group, in the last one
};

}  // namespace trestle::sharding
