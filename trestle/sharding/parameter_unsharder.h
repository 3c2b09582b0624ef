#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/flat_parameter_group.h"
#include "trestle/sharding/gradient_reducer.h"

namespace trestle::sharding {

// Level Parameters: puts a unit's parameters together before its forward and before its backward, one unit ahead of where
// the model is, and lets them go when they are not needed: after the forward (unless reshard_after_forward is off), and in
// the backward when all gradients of the parameters and of the unit's inputs are there.
//
// A group of parameters may be part of several units, where layers share a parameter: it is let go when none needs it.
// A unit that runs again inside a backward (activation checkpointing) only gathers: the backward lets go.
class ParameterUnsharder final : public GradientReducer::Observer,
                                 public std::enable_shared_from_this<ParameterUnsharder> {
 public:
  struct Unit {
    std::string name;
    std::vector<std::size_t> groups;
    bool stays =
        false;  // from the forward on until the backward ends, as other units run inside of it
  };

  ParameterUnsharder(std::vector<std::shared_ptr<FlatParameterGroup>> groups,
                     std::vector<Unit> units, const RankGroups& ranks,
                     std::shared_ptr<GradientReducer> reducer, const ShardOptions& options);

  // One forward of a unit. Destroyed without end(), because the forward threw, it lets the parameters go.
  class Call;
  // Gathers, and returns when the parameters are there. Inputs that need a gradient are replaced by views.
  std::shared_ptr<Call> begin(std::size_t unit, std::vector<at::Tensor>& inputs);
  // `keep`: the next call is of the same unit. Outputs may be replaced by views.
  void end(const std::shared_ptr<Call>& call, std::vector<at::Tensor>& outputs, bool keep = false);

  void begin_model();  // the next unit is the model's first one
  void end_model();    // that forward has come to its end
  // The units of the layers in the order in which a forward runs them, where it is known before the first one.
  void expect(const std::vector<std::size_t>& units);
  // Take part in what the other ranks gather in a forward and a backward, on a rank that has none.
  void follow_forward();
  void follow_backward();
  void set_recorder(ShardRecorder recorder);
  void gather_all();  // all parameters, until as many calls of release_all()
  void release_all();
  // The shards may have changed: what is still gathered is let go, or gathered anew.
  void renew();

  void gradients_complete(std::size_t group) override;
  void backward_ended() override;
  void pass_ended() override;

 private:
  void gather_passed_over(std::size_t until);
  void gather(std::size_t unit);
  void gather_ahead(std::size_t place, int step);
  void wait(std::size_t unit);
  void begin_alone(std::size_t unit);
  struct Event;
  bool notes_order() const;
  void note(const Event& event);
  void begin_backward(const std::shared_ptr<Call>& call);
  void input_done(const std::shared_ptr<Call>& call);
  bool plan_is_known() const;
  void let_go(std::size_t group);
  void note_backward();
  bool orders_differ() const;
  void gather_whole_pass();
  bool has_backward(std::size_t place) const;
  std::size_t last_place(std::size_t group) const;
  bool comes_again(std::size_t group) const;
  void let_go_until_backward(std::size_t group);

  // A unit's forward begins or ends, in a training forward of the model. A forward goes through them in their order, a
  // backward through the ends in the opposite one.
  struct Event {
    std::size_t unit = 0;
    bool begins = true;
    bool trains = true;  // it may be inside of no_grad
    bool keep = false;   // as in end()
    bool operator==(const Event&) const = default;
  };

  struct GroupState {
    int holders =
        0;  // forwards under way, and backwards of calls whose inputs' gradients are not all there
    bool complete = false;  // its gradients, in this backward
  };

  std::vector<std::shared_ptr<FlatParameterGroup>> groups_;
  std::vector<Unit> units_;
  comm::Group checked_;
  comm::Group unchecked_;
  comm::Group few_, unchecked_few_;  // Reshard's
  std::weak_ptr<GradientReducer> reducer_;
  bool reshard_;
  bool may_pass_over_;  // a backward some units, on some ranks
  int keep_all_ = 0;    // calls of gather_all()
  std::recursive_mutex mutex_;
  std::vector<GroupState> states_;
  std::vector<std::shared_ptr<Call>> in_backward_;
  std::weak_ptr<Call> model_call_;  // of unit 0, in the last forward
  std::vector<Event> order_;        // of a training forward, as the first one had it
  std::size_t place_ = 0;           // in this forward
  bool order_known_ = false;
  bool in_training_forward_ = false;  // of the model
  bool follows_backward_ = false;     // of other ranks: in follow_backward()
  std::vector<Event> expected_;
  ShardRecorder recorder_;
  ShardRecorder::Entry backward_entry_;  // of the unit whose backward is under way
  int forwards_ = 0;                     // of training, since the last pass
  // Places of order_: at which this backward is, which it has been at, and at which each group's gradients were complete in it.
  std::optional<std::size_t> now_at_;
  std::vector<bool> seen_;
  std::vector<std::size_t> completing_;
  bool followed_ = false;              // it was follow_backward()
  bool whole_pass_ = false;            // all groups stay until it ends
  bool runs_again_together_ = false;   // several units, in one checkpointed function
  std::uint64_t checkpointed_in_ = 0;  // the last one that a unit was called in
  // Of backwards before, as the last two; empty before the first.
  std::vector<bool> used_;
  std::vector<std::size_t> completed_at_;
  std::optional<std::size_t> passed_;  // places of order_ from here on are done in this pass
};

}  // namespace trestle::sharding
