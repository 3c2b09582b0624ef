// What becomes of units in a backward, and what a rank does that has none of its own and follows the others.
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/sharding/unit_call.h"

namespace trestle::sharding {

void ParameterUnsharder::follow_forward() {
  const std::lock_guard lock(mutex_);
  const std::vector<Event> order = order_known_ ? order_ : expected_;
  const bool trains = at::GradMode::is_enabled();
  if (order.empty())
    throw StateError("a rank without samples in the first step at level Parameters",
                     {.hint = "The order of the units is not known yet: give every rank a sample "
                              "in the first step."});
  std::vector<std::shared_ptr<Call>> running;
  std::vector<at::Tensor> nothing;
  for (const Event& event : order) {
    const at::AutoGradMode mode(trains && event.trains);
    if (event.begins) {
      running.push_back(begin(event.unit, nothing));
      continue;
    }
    const auto call = std::find_if(running.rbegin(), running.rend(), [&](const auto& one) {
      return one->unit == event.unit && one->running;
    });
    end(*call, nothing, event.keep);
  }
  end_model();
}

void ParameterUnsharder::follow_backward() {
  const std::lock_guard lock(mutex_);
  follows_backward_ = followed_ = true;
  const auto end = c10::make_scope_exit([this] { follows_backward_ = false; });
  gather_whole_pass();
  std::vector<std::size_t> complete_at = completed_at_;
  if (complete_at.empty())
    for (std::size_t g = 0; g < groups_.size(); ++g) complete_at.push_back(last_place(g));
  for (std::size_t place = order_.size(); place-- > 0;) {
    if (!has_backward(place)) continue;
    const auto call = std::make_shared<Call>(weak_from_this(), order_[place].unit);
    call->place = place;
    begin_backward(call);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (complete_at[g] != place || !groups_[g]->trained()) continue;
      gradients_complete(g);
      if (const auto reducer = reducer_.lock()) reducer->complete_without_gradients(g);
    }
    for (const std::size_t g : units_[call->unit].groups)
      if (states_[g].complete || !groups_[g]->trained()) let_go(g);
  }
}

// A rank whose backward passes over units gathers them in its turn, as the others do.
void ParameterUnsharder::gather_passed_over(std::size_t until) {
  if (!may_pass_over_ || forwards_ > 1 || !order_known_) return;
  if (!passed_) passed_ = order_.size();
  while (*passed_ > until) {
    const Event& event = order_[--*passed_];
    if (event.begins || !event.trains) continue;
    now_at_ = *passed_;
    gather(event.unit);
    gather_ahead(*passed_, -1);
    wait(event.unit);
    for (const std::size_t g : units_[event.unit].groups)
      if (states_[g].complete) let_go(g);
  }
}

void ParameterUnsharder::backward_ended() {
  const std::lock_guard lock(mutex_);
  gather_whole_pass();
  gather_passed_over(0);
  backward_entry_.end();
  note_backward();
}

// What ranks that follow do in a backward: what the others did. A call may have none, where nothing of what it returns counts,
// and a group may be complete before its last one.
void ParameterUnsharder::note_backward() {
  if (followed_ || may_pass_over_ || forwards_ > 1 || !order_known_) return;
  if (seen_.size() != order_.size()) return;
  used_.resize(order_.size(), false);
  for (std::size_t place = 0; place < seen_.size(); ++place)
    used_[place] = used_[place] || seen_[place];
  completed_at_ = completing_;
}

// Ranks come to units in different orders: where some pass over units or follow the others, and units run again together, or of
// several forwards.
bool ParameterUnsharder::orders_differ() const {
  if (may_pass_over_ && (runs_again_together_ || forwards_ > 1)) return true;
  const auto reducer = reducer_.lock();
  return runs_again_together_ && reducer && reducer->may_be_followed();
}

// All of them in one order then, before the first is needed.
void ParameterUnsharder::gather_whole_pass() {
  if (whole_pass_ || !order_known_ || !orders_differ()) return;
  whole_pass_ = true;
  for (const auto& group : groups_) group->gather(plan_is_known() ? unchecked_ : checked_);
  for (const auto& group : groups_) group->wait_gathered();
}

bool ParameterUnsharder::has_backward(std::size_t place) const {
  const Event& event = order_[place];
  return !event.begins && event.trains && (used_.empty() || used_.at(place));
}

// The place in the order at which a backward needs the group last.
std::size_t ParameterUnsharder::last_place(std::size_t group) const {
  for (std::size_t place = 0; place < order_.size(); ++place) {
    const auto& groups = units_[order_[place].unit].groups;
    if (has_backward(place) && std::find(groups.begin(), groups.end(), group) != groups.end())
      return place;
  }
  return order_.size();
}

// In a backward: it would be gathered once more. Of several forwards nobody knows which of them have a backward.
bool ParameterUnsharder::comes_again(std::size_t group) const {
  if (!now_at_ || !order_known_) return false;
  return (forwards_ > 1 && !groups_[group]->trained()) || last_place(group) < *now_at_;
}

void ParameterUnsharder::begin_backward(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  if (call->in_backward) return;
  call->in_backward = true;
  call->inputs_left = call->inputs;
  in_backward_.push_back(call);
  backward_entry_.end();
  gather_whole_pass();
  if (call->place) gather_passed_over(*call->place + 1);
  if (call->place && passed_) passed_ = std::min(*passed_, *call->place);
  if (call->place) {
    now_at_ = *call->place;
    seen_.resize(order_.size(), false);
    seen_.at(*call->place) = true;
  }
  if (call->inputs > 0 || units_[call->unit].stays)
    for (const std::size_t g : units_[call->unit].groups) ++states_[g].holders;
  gather(call->unit);
  if (call->place) gather_ahead(*call->place, -1);
  wait(call->unit);
  backward_entry_ = recorder_.begin(ShardEvent::What::Backward, static_cast<int>(call->unit));
}

void ParameterUnsharder::input_done(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  if (!call->in_backward || --call->inputs_left > 0 || units_[call->unit].stays) return;
  for (const std::size_t g : units_[call->unit].groups) {
    --states_[g].holders;
    if (states_[g].complete || !groups_[g]->trained()) let_go(g);
  }
}

void ParameterUnsharder::gradients_complete(std::size_t group) {
  const std::lock_guard lock(mutex_);
  states_[group].complete = true;
  completing_.resize(groups_.size(), order_.size());
  if (now_at_) completing_[group] = *now_at_;
  let_go(group);
}

void ParameterUnsharder::pass_ended() {
  const std::lock_guard lock(mutex_);
  for (const auto& call : in_backward_) call->in_backward = false;
  in_backward_.clear();
  for (GroupState& state : states_) state = {};
  forwards_ = 0;
  passed_.reset();
  now_at_.reset();
  seen_.clear();
  completing_.clear();
  followed_ = whole_pass_ = false;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    let_go(g);
    groups_[g]->forget_part();
  }
}

}  // namespace trestle::sharding
