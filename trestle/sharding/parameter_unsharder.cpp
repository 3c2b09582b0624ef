#include "trestle/sharding/parameter_unsharder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/checkpointing.h"
#include "trestle/sharding/unit_call.h"

namespace trestle::sharding {
namespace {

bool inside_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

ParameterUnsharder::ParameterUnsharder(std::vector<std::shared_ptr<FlatParameterGroup>> groups,
                                       std::vector<Unit> units, const RankGroups& ranks,
                                       std::shared_ptr<GradientReducer> reducer,
                                       const ShardOptions& options)
    : groups_(std::move(groups)),
      units_(std::move(units)),
      checked_(ranks.gathers),
      unchecked_(checked_.with_check(comm::Check::Off)),
      few_(ranks.few),
      unchecked_few_(few_.valid() ? few_.with_check(comm::Check::Off) : few_),
      reducer_(reducer),
      reshard_(options.reshard_after_forward.to_all() || options.reshard_after_forward.ranks() > 1),
      may_pass_over_(options.unused_parameters != UnusedParameters::Refuse),
      states_(groups_.size()) {}

// The first step compares what the ranks are about to gather; later ones follow the same order, which note_order() sees to.
bool ParameterUnsharder::plan_is_known() const {
  const auto reducer = reducer_.lock();
  return order_known_ && reducer && reducer->steps() > 0 &&
         (notes_order() || inside_backward() || follows_backward_);
}

void ParameterUnsharder::gather(std::size_t unit) {
  for (const std::size_t g : units_[unit].groups)
    groups_[g]->gather(plan_is_known() ? unchecked_ : checked_);
}

void ParameterUnsharder::wait(std::size_t unit) {
  auto entry = recorder_.begin(ShardEvent::What::Wait, static_cast<int>(unit));
  for (const std::size_t g : units_[unit].groups) groups_[g]->wait_gathered();
  entry.end();
}

// The unit that comes next, while this one computes.
void ParameterUnsharder::gather_ahead(std::size_t place, int step) {
  if (!order_known_) return;
  auto next = static_cast<std::ptrdiff_t>(place) + step;
  for (; next >= 0 && next < static_cast<std::ptrdiff_t>(order_.size()); next += step) {
    const Event& event = order_[static_cast<std::size_t>(next)];
    if (event.unit == order_[place].unit) continue;
    if (step > 0 ? !event.begins : !has_backward(static_cast<std::size_t>(next))) continue;
    gather(event.unit);
    return;
  }
}

void ParameterUnsharder::begin_model() {
  const std::lock_guard lock(mutex_);
  if (at::GradMode::is_enabled()) ++forwards_;
  if (!order_known_) order_.clear();  // of a forward that threw
  place_ = 0;
  in_training_forward_ = at::GradMode::is_enabled();
  renew();
}

void ParameterUnsharder::end_model() {
  const std::lock_guard lock(mutex_);
  if (inside_backward()) return;
  if (in_training_forward_) order_known_ = true;
  in_training_forward_ = false;
}

bool ParameterUnsharder::notes_order() const { return in_training_forward_ && !inside_backward(); }

void ParameterUnsharder::note(const Event& event) {
  if (!order_known_) {
    order_.push_back(event);
  } else if (place_ >= order_.size() || order_[place_] != event) {
    const auto& first = place_ < order_.size() ? order_[place_] : event;
    throw StateError(
        text("unit '", units_[event.unit].name, event.begins ? "' runs" : "' ends",
             " where the first step ",
             place_ >= order_.size() ? std::string("ran no unit any more")
                                     : text(first.begins ? "ran" : "came to the end of", " unit '",
                                            units_[first.unit].name, "'"),
             place_ < order_.size() && first.trains != event.trains ? " in another grad mode" : ""),
        {.hint = "At level Parameters a model runs its units in the same order in every step."});
  }
  ++place_;
}

void ParameterUnsharder::expect(const std::vector<std::size_t>& units) {
  for (auto unit = units.begin(); unit != units.end(); ++unit) {
    expected_.push_back({.unit = *unit, .begins = true});
    const bool keep = std::find(unit + 1, units.end(), *unit) != units.end();
    expected_.push_back({.unit = *unit, .begins = false, .keep = keep});
  }
}

// A unit of a torch module that is called by itself, while no forward of the model runs. What is still there of one before,
// whose backward did not come, may be from before the last step.
void ParameterUnsharder::begin_alone(std::size_t unit) {
  const auto model = model_call_.lock();
  if (!units_[0].stays || (model && model->running)) return;
  in_training_forward_ = false;  // it threw
  for (const std::size_t g : units_[unit].groups) {
    if (states_[g].holders > 0) continue;
    groups_[g]->release();
    groups_[g]->forget_part();
  }
}

std::shared_ptr<ParameterUnsharder::Call> ParameterUnsharder::begin(
    std::size_t unit, std::vector<at::Tensor>& inputs) {
  const std::lock_guard lock(mutex_);
  const at::DisableRecordFunctionGuard own_work;  // a checkpointed function does not write here
  auto call = std::make_shared<Call>(weak_from_this(), unit);
  if (inside_backward()) {
    gather_whole_pass();
    gather(unit);
    wait(unit);
    return call;
  }
  if (unit == 0)
    model_call_ = call;
  else
    begin_alone(unit);
  call->trains = at::GradMode::is_enabled();
  if (notes_order()) {
    note({.unit = unit, .begins = true, .trains = call->trains});
    const std::uint64_t checkpointed = nn::checkpointed_call();
    if (checkpointed > 0 && checkpointed == checkpointed_in_) runs_again_together_ = true;
    checkpointed_in_ = checkpointed;
    call->begun = place_ - 1;
  }
  for (const std::size_t g : units_[unit].groups) ++states_[g].holders;
  call->running = true;
  gather(unit);
  if (call->begun) gather_ahead(*call->begun, 1);
  wait(unit);
  call->entry = recorder_.begin(ShardEvent::What::Forward, static_cast<int>(unit));
  if (!call->trains) return call;
  for (at::Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    input = input.view_as(input);  // whose gradient is this unit's alone
    ++call->inputs;
    input.register_hook([call = std::weak_ptr<Call>(call)](const at::Tensor&) {
      const auto self = call.lock();
      if (!self) return;
      if (const auto owner = self->owner.lock()) owner->input_done(self);
    });
  }
  return call;
}

void ParameterUnsharder::end(const std::shared_ptr<Call>& call, std::vector<at::Tensor>& outputs,
                             bool keep) {
  const std::lock_guard lock(mutex_);
  const at::DisableRecordFunctionGuard own_work;
  if (!call->running) return;
  const Unit& unit = units_[call->unit];
  const bool others_inside = call->begun && place_ > *call->begun + 1;
  if (call->begun) {
    note({.unit = call->unit, .begins = false, .trains = call->trains, .keep = keep});
    if (call->trains) call->place = place_ - 1;
  }
  call->running = false;
  call->entry.end();
  const bool stays = keep || (call->trains && (unit.stays || !reshard_));
  for (const std::size_t g : unit.groups) {
    --states_[g].holders;
    if (stays) continue;
    call->trains ? let_go_until_backward(g) : let_go(g);
  }
  if (!call->trains) return;
  for (at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    // What a unit inside of this one has made is its own: this one's backward begins before.
    if (others_inside && output.layout() == at::kStrided) output = output.view_as(output);
    const auto watch = [&call](const at::Tensor& tensor) {
      if (!tensor.requires_grad() || tensor.is_leaf()) return;
      tensor.register_hook([call](const at::Tensor&) {
        const auto owner = call->owner.lock();
        if (!owner) return;
        if (const auto reducer = owner->reducer_.lock()) reducer->prepare_for_backward();
        owner->begin_backward(call);
      });
    };
    watch(output);
    // A layer that writes to a view in place takes it, and its hooks, out of the graph, but not what it is a view of.
    if (output.is_view()) watch(at::Tensor(output._base()));
  }
}

void ParameterUnsharder::let_go(std::size_t group) {
  if (states_[group].holders > 0 || keep_all_ > 0 || whole_pass_ || comes_again(group)) return;
  groups_[group]->release();
  if (states_[group].complete) groups_[group]->forget_part();
}

void ParameterUnsharder::let_go_until_backward(std::size_t group) {
  if (!few_.valid()) return let_go(group);
  if (states_[group].holders > 0 || keep_all_ > 0) return;
  groups_[group]->release_to(plan_is_known() ? unchecked_few_ : few_);
}

void ParameterUnsharder::set_recorder(ShardRecorder recorder) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::move(recorder);
}

void ParameterUnsharder::gather_all() {
  const std::lock_guard lock(mutex_);
  ++keep_all_;
  renew();
  for (const auto& group : groups_) group->gather(checked_);
  for (const auto& group : groups_) group->wait_gathered();
}

void ParameterUnsharder::release_all() {
  const std::lock_guard lock(mutex_);
  if (keep_all_ > 0) --keep_all_;
  for (std::size_t g = 0; g < groups_.size(); ++g) let_go(g);
}

void ParameterUnsharder::renew() {
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_) {
    const bool was_there = group->gathered();
    group->release();
    group->forget_part();
    if (was_there && keep_all_ > 0) group->gather(checked_);
  }
  if (keep_all_ > 0)
    for (const auto& group : groups_) group->wait_gathered();
}

}  // namespace trestle::sharding
