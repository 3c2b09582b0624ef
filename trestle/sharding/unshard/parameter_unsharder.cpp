#include "trestle/sharding/unshard/parameter_unsharder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/checkpointing.h"
#include "trestle/sharding/unshard/unit_call.h"

namespace trestle::sharding {
namespace {

bool in_autograd_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

std::vector<std::string> names_of_units(const std::vector<Unit>& units) {
  std::vector<std::string> names;
  for (const Unit& unit : units) names.push_back(unit.name);
  return names;
}

}  // namespace

ParameterUnsharder::ParameterUnsharder(FlatParameterGroups groups, std::vector<Unit> units,
                                       const RankGroups& ranks,
                                       std::shared_ptr<GradientReducer> reducer,
                                       const ShardOptions& options, GradientReducer::Driver driver)
    : groups_(std::move(groups)),
      units_(std::move(units)),
      all_{.checked = ranks.gathers, .unchecked = ranks.gathers.with_check(comm::Check::Off)},
      reducer_(reducer),
      reshard_(options.reshard_after_forward.to_all() || options.reshard_after_forward.ranks() > 1),
      driver_(driver),
      may_skip_units_(runs_stage() || options.unused_parameters != UnusedParameters::Refuse),
      states_(groups_.size()),
      order_(names_of_units(units_)) {
  if (ranks.neighbours.valid())
    neighbours_ = {.checked = ranks.neighbours,
                   .unchecked = ranks.neighbours.with_check(comm::Check::Off)};
}

void ParameterUnsharder::expect(const std::vector<std::size_t>& units) {
  order_.expect(units);
  if (runs_stage()) order_.take_expected();
}

// In the first step the ranks compare what they gather. Later steps follow the same order, which
// UnitOrder checks.
comm::Check ParameterUnsharder::check() const {
  const auto reducer = reducer_.lock();
  const bool plan_is_known = order_.known() && reducer && reducer->stats().steps > 0 &&
                             (records_order() || in_autograd_backward() || shadows_backward_);
  return plan_is_known ? comm::Check::Off : comm::Check::On;
}

bool ParameterUnsharder::records_order() const {
  return (in_training_forward_ || in_use_) && !in_autograd_backward();
}

void ParameterUnsharder::gather(std::size_t unit) {
  for (const std::size_t g : units_[unit].groups) groups_[g]->gather(all_.choose(check()));
}

void ParameterUnsharder::wait(std::size_t unit) {
  auto entry = recorder_.begin(ShardEvent::What::Wait, static_cast<int>(unit));
  for (const std::size_t g : units_[unit].groups) groups_[g]->wait_gathered();
  entry.end();
}

// Begins to gather the next unit, while the unit at `place` computes.
void ParameterUnsharder::gather_ahead(std::size_t place, Direction direction) {
  if (!order_.known()) return;
  const bool forward = direction == Direction::Forward;
  const std::ptrdiff_t step = forward ? 1 : -1;
  auto next = static_cast<std::ptrdiff_t>(place) + step;
  for (; next >= 0 && next < static_cast<std::ptrdiff_t>(order_.size()); next += step) {
    const Event& event = order_[static_cast<std::size_t>(next)];
    if (event.unit == order_[place].unit) continue;
    if (forward ? !event.begins : !has_backward(static_cast<std::size_t>(next))) continue;
    gather(event.unit);
    return;
  }
}

void ParameterUnsharder::release(std::size_t group) {
  if (states_[group].holders > 0 || unshards_ > 0 || pass_.gathers_all || comes_again(group))
    return;
  // The micro-batches of one use compute with the same parameters.
  const bool is_last = states_[group].complete && (!in_use_ || in_last_backward());
  if (in_use_ && !reshard_ && !is_last) return;
  groups_[group]->release();
  if (is_last) groups_[group]->forget_neighbours();
}

// A stage reduces its gradients in the last backward of a step. No forward follows.
bool ParameterUnsharder::in_last_backward() const {
  const auto reducer = reducer_.lock();
  return reducer && reducer->sync();
}

void ParameterUnsharder::release_until_backward(std::size_t group) {
  if (!neighbours_.checked.valid()) return release(group);
  if (states_[group].holders > 0 || unshards_ > 0) return;
  groups_[group]->release_to(neighbours_.choose(check()));
}

void ParameterUnsharder::set_recorder(ShardRecorder recorder) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::move(recorder);
}

void ParameterUnsharder::unshard_all() {
  const std::lock_guard lock(mutex_);
  ++unshards_;
  refresh();
  for (const auto& group : groups_) group->gather(all_.checked);
  for (const auto& group : groups_) group->wait_gathered();
}

void ParameterUnsharder::reshard_all() {
  const std::lock_guard lock(mutex_);
  if (unshards_ > 0) --unshards_;
  for (std::size_t g = 0; g < groups_.size(); ++g) release(g);
}

void ParameterUnsharder::refresh() {
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_) {
    const bool was_gathered = group->gathered();
    group->release();
    group->forget_neighbours();
    if (was_gathered && unshards_ > 0) group->gather(all_.checked);
  }
  if (unshards_ > 0)
    for (const auto& group : groups_) group->wait_gathered();
}

at::Tensor ParameterUnsharder::whole(const at::Tensor& parameter) {
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_) {
    for (std::size_t i = 0; i < group->size(); ++i) {
      if (!group->parameter(i).is_same(parameter)) continue;
      const bool was_gathered = group->gathered();
      group->gather(all_.checked);
      group->wait_gathered();
      at::Tensor copy = group->parameter(i).detach().clone();
      if (!was_gathered) group->release();
      return copy;
    }
  }
  throw StateError("internal: whole() of a tensor that is no parameter of the stage");
}

// A pipeline's stage.

void ParameterUnsharder::begin_use() {
  const std::lock_guard lock(mutex_);
  in_use_ = true;
  stage_backward_ended_ = false;
  for (GroupState& state : states_) state = {};  // of a step that failed
  pass_ = {};
  refresh();
}

void ParameterUnsharder::end_use() {
  const std::lock_guard lock(mutex_);
  in_use_ = false;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    release(g);
    groups_[g]->forget_neighbours();
  }
}

void ParameterUnsharder::end_stage_backward() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(stage_backward_ended_, false)) return;
  gather_skipped(0);
  pass_ended();
}

// A checkpointed layer runs again where its backward begins.
void ParameterUnsharder::note_recomputation(std::size_t unit) {
  for (std::size_t place = pass_.now.value_or(order_.size()); place-- > 0;) {
    if (order_[place].begins || order_[place].unit != unit) continue;
    gather_skipped(place + 1);
    pass_.skipped = std::min(pass_.skipped.value_or(order_.size()), place);
    pass_.now = place;
    return;
  }
}

// Forwards.

void ParameterUnsharder::begin_model() {
  const std::lock_guard lock(mutex_);
  in_training_forward_ = at::GradMode::is_enabled();
  if (in_training_forward_) ++pass_.forwards;
  order_.begin_forward();
  refresh();
}

void ParameterUnsharder::end_model() {
  const std::lock_guard lock(mutex_);
  if (in_autograd_backward()) return;
  if (in_training_forward_) order_.end_training_forward();
  in_training_forward_ = false;
}

// A unit of a torch module that is called by itself, outside of the model's forward. Parameters
// that an earlier forward left gathered, whose backward did not come, may be older than the last
// step.
void ParameterUnsharder::begin_alone(std::size_t unit) {
  const auto model = model_call_.lock();
  if (!units_[0].stays || (model && model->running)) return;
  in_training_forward_ = false;  // the model's forward threw
  for (const std::size_t g : units_[unit].groups) {
    if (states_[g].holders > 0) continue;
    groups_[g]->release();
    groups_[g]->forget_neighbours();
  }
}

void ParameterUnsharder::note_begin(Call& call) {
  if (!records_order()) return;
  if (runs_stage()) {
    if (order_.next_place() == order_.size()) order_.begin_forward();  // the next micro-batch
    call.begun = order_.note({.unit = call.unit, .begins = true});
    return;
  }
  call.begun = order_.note({.unit = call.unit, .begins = true, .trains = call.trains});
  const std::uint64_t checkpointed = nn::checkpointed_call();
  if (checkpointed > 0 && checkpointed == checkpointed_in_) recomputed_together_ = true;
  checkpointed_in_ = checkpointed;
}

std::shared_ptr<ParameterUnsharder::Call> ParameterUnsharder::begin(
    std::size_t unit, std::vector<at::Tensor>& inputs) {
  const std::lock_guard lock(mutex_);
  const at::DisableRecordFunctionGuard
      unrecorded;  // these are not writes of a checkpointed function
  auto call = std::make_shared<Call>(weak_from_this(), unit);
  if (in_autograd_backward()) {
    gather_whole_pass();
    if (runs_stage()) note_recomputation(unit);
    gather(unit);
    wait(unit);
    return call;
  }
  if (unit == 0)
    model_call_ = call;
  else
    begin_alone(unit);
  call->trains = at::GradMode::is_enabled();
  note_begin(*call);
  for (const std::size_t g : units_[unit].groups) ++states_[g].holders;
  call->running = true;
  gather(unit);
  if (call->begun) gather_ahead(*call->begun, Direction::Forward);
  wait(unit);
  call->entry = recorder_.begin(ShardEvent::What::Forward, static_cast<int>(unit));
  if (call->trains) watch_inputs(call, inputs);
  return call;
}

void ParameterUnsharder::watch_inputs(const std::shared_ptr<Call>& call,
                                      std::vector<at::Tensor>& inputs) {
  for (at::Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    input = input.view_as(input);  // the view's gradient comes from this unit alone
    ++call->inputs;
    input.register_hook([call = std::weak_ptr<Call>(call)](const at::Tensor&) {
      const auto self = call.lock();
      if (!self) return;
      if (const auto owner = self->owner.lock()) owner->input_done(self);
    });
  }
}

void ParameterUnsharder::watch_output(const std::shared_ptr<Call>& call, const at::Tensor& output) {
  if (!output.requires_grad() || output.is_leaf()) return;
  output.register_hook([call](const at::Tensor&) {
    const auto owner = call->owner.lock();
    if (!owner) return;
    if (const auto reducer = owner->reducer_.lock()) reducer->prepare_for_backward();
    owner->begin_backward(call);
  });
}

void ParameterUnsharder::end(const std::shared_ptr<Call>& call, std::vector<at::Tensor>& outputs,
                             After after) {
  const std::lock_guard lock(mutex_);
  const at::DisableRecordFunctionGuard unrecorded;
  if (!call->running) return;
  const Unit& unit = units_[call->unit];
  const bool keep = after == After::Keep;
  const bool units_inside = call->begun && order_.next_place() > *call->begun + 1;
  if (call->begun) {
    const std::size_t place = order_.note({.unit = call->unit,
                                           .begins = false,
                                           .trains = call->trains || runs_stage(),
                                           .keep = keep});
    if (call->trains) call->ended = place;
  }
  call->running = false;
  call->entry.end();
  const bool stays = keep || (call->trains && (unit.stays || !reshard_));
  for (const std::size_t g : unit.groups) {
    --states_[g].holders;
    if (stays) continue;
    call->trains ? release_until_backward(g) : release(g);
  }
  if (!call->trains) return;
  for (at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    // An output of a unit inside this one has a hook of that unit. The backward of this unit begins
    // before.
    if (units_inside && output.layout() == at::kStrided) output = output.view_as(output);
    watch_output(call, output);
    // A layer that writes to a view in place removes the view and its hooks from the graph, but not
    // the view's base.
    if (output.is_view()) watch_output(call, at::Tensor(output._base()));
  }
}

// Backwards.

bool ParameterUnsharder::has_backward(std::size_t place) const {
  const Event& event = order_[place];
  return !event.begins && event.trains && (used_.empty() || used_.at(place));
}

// The last place, in a backward, that needs the group.
std::size_t ParameterUnsharder::last_place(std::size_t group) const {
  for (std::size_t place = 0; place < order_.size(); ++place) {
    const auto& groups = units_[order_[place].unit].groups;
    if (has_backward(place) && std::find(groups.begin(), groups.end(), group) != groups.end())
      return place;
  }
  return order_.size();
}

// Whether this backward would gather the group once more. After several forwards any of them may
// have a backward.
bool ParameterUnsharder::comes_again(std::size_t group) const {
  if (!pass_.now || !order_.known()) return false;
  return (pass_.forwards > 1 && !groups_[group]->trained()) || last_place(group) < *pass_.now;
}

// Whether ranks may reach units in different orders: some skip units or have no samples, and units
// are recomputed together or in several forwards.
bool ParameterUnsharder::orders_differ() const {
  if (may_skip_units_ && (recomputed_together_ || pass_.forwards > 1)) return true;
  const auto reducer = reducer_.lock();
  return recomputed_together_ && reducer && reducer->ranks_may_lack_samples();
}

// If orders may differ, all ranks gather all groups in one order, before the first is needed.
void ParameterUnsharder::gather_whole_pass() {
  if (pass_.gathers_all || !order_.known() || !orders_differ()) return;
  pass_.gathers_all = true;
  for (const auto& group : groups_) group->gather(all_.choose(check()));
  for (const auto& group : groups_) group->wait_gathered();
}

// A rank whose backward skips units gathers them when the ranks that use them do.
void ParameterUnsharder::gather_skipped(std::size_t until) {
  if (!may_skip_units_ || pass_.forwards > 1 || !order_.known()) return;
  if (!pass_.skipped) pass_.skipped = order_.size();
  while (*pass_.skipped > until) {
    const Event& event = order_[--*pass_.skipped];
    if (event.begins || !event.trains) continue;
    pass_.now = *pass_.skipped;
    gather(event.unit);
    gather_ahead(*pass_.skipped, Direction::Backward);
    wait(event.unit);
    for (const std::size_t g : units_[event.unit].groups)
      if (states_[g].complete) release(g);
  }
}

void ParameterUnsharder::begin_backward(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  if (call->in_backward) return;
  call->in_backward = true;
  call->inputs_left = call->inputs;
  in_backward_.push_back(call);
  backward_entry_.end();
  gather_whole_pass();
  if (call->ended) {
    const std::size_t place = *call->ended;
    gather_skipped(place + 1);
    if (pass_.skipped) pass_.skipped = std::min(*pass_.skipped, place);
    pass_.now = place;
    pass_.seen.resize(order_.size(), false);
    pass_.seen.at(place) = true;
  }
  if (call->inputs > 0 || units_[call->unit].stays)
    for (const std::size_t g : units_[call->unit].groups) ++states_[g].holders;
  gather(call->unit);
  if (call->ended) gather_ahead(*call->ended, Direction::Backward);
  wait(call->unit);
  backward_entry_ = recorder_.begin(ShardEvent::What::Backward, static_cast<int>(call->unit));
}

void ParameterUnsharder::input_done(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  if (!call->in_backward || --call->inputs_left > 0 || units_[call->unit].stays) return;
  for (const std::size_t g : units_[call->unit].groups) {
    --states_[g].holders;
    if (states_[g].complete || !groups_[g]->trained()) release(g);
  }
}

void ParameterUnsharder::gradients_complete(std::size_t group) {
  const std::lock_guard lock(mutex_);
  states_[group].complete = true;
  pass_.completed_at.resize(groups_.size(), order_.size());
  if (pass_.now) pass_.completed_at[group] = *pass_.now;
  release(group);
}

void ParameterUnsharder::backward_ended() {
  const std::lock_guard lock(mutex_);
  gather_whole_pass();
  gather_skipped(0);
  backward_entry_.end();
  note_backward();
  stage_backward_ended_ = runs_stage();
}

// Records what this backward did, for shadow_backward(). A call may have no backward, because the
// loss does not depend on its outputs. A group may be complete before its last call.
void ParameterUnsharder::note_backward() {
  if (pass_.shadowed || may_skip_units_ || pass_.forwards > 1 || !order_.known()) return;
  if (pass_.seen.size() != order_.size()) return;
  used_.resize(order_.size(), false);
  for (std::size_t place = 0; place < pass_.seen.size(); ++place)
    used_[place] = used_[place] || pass_.seen[place];
  completed_at_ = pass_.completed_at;
}

void ParameterUnsharder::pass_ended() {
  const std::lock_guard lock(mutex_);
  for (const auto& call : in_backward_) call->in_backward = false;
  in_backward_.clear();
  for (GroupState& state : states_) state = {};
  pass_ = {};
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    release(g);
    if (!in_use_) groups_[g]->forget_neighbours();
  }
}

// Ranks without samples.

void ParameterUnsharder::shadow_forward() {
  const std::lock_guard lock(mutex_);
  const std::vector<Event> order = order_.known_or_expected();
  const bool trains = at::GradMode::is_enabled();
  if (order.empty())
    throw StateError("this rank has no samples in the first step at level Parameters",
                     {.hint = "The first step records the order of the units. Give every rank at "
                              "least one sample in it."});
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
    end(*call, nothing, event.keep ? After::Keep : After::Release);
  }
  end_model();
}

void ParameterUnsharder::shadow_backward() {
  const std::lock_guard lock(mutex_);
  shadows_backward_ = pass_.shadowed = true;
  const auto end = c10::make_scope_exit([this] { shadows_backward_ = false; });
  gather_whole_pass();
  std::vector<std::size_t> complete_at = completed_at_;
  if (complete_at.empty())
    for (std::size_t g = 0; g < groups_.size(); ++g) complete_at.push_back(last_place(g));
  for (std::size_t place = order_.size(); place-- > 0;) {
    if (!has_backward(place)) continue;
    const auto call = std::make_shared<Call>(weak_from_this(), order_[place].unit);
    call->ended = place;
    begin_backward(call);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (complete_at[g] != place || !groups_[g]->trained()) continue;
      gradients_complete(g);
      if (const auto reducer = reducer_.lock()) reducer->complete_without_gradients(g);
    }
    for (const std::size_t g : units_[call->unit].groups)
      if (states_[g].complete || !groups_[g]->trained()) release(g);
  }
}

}  // namespace trestle::sharding
