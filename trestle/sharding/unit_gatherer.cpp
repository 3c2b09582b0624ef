#include "trestle/sharding/unit_gatherer.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::sharding {
namespace {

bool inside_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

class UnitGatherer::Call {
 public:
  Call(std::weak_ptr<UnitGatherer> owner, std::size_t unit) : owner(std::move(owner)), unit(unit) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (!running) return;
    const auto gatherer = owner.lock();
    if (!gatherer) return;
    const std::lock_guard lock(gatherer->mutex_);
    try {
      for (const std::size_t g : gatherer->units_[unit].groups) {
        --gatherer->states_[g].holders;
        gatherer->let_go(g);
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // What was being gathered failed, which all ranks' next call says.
    }
  }

  std::weak_ptr<UnitGatherer> owner;
  std::size_t unit;
  std::optional<std::size_t> place = {};  // in the order of units, in training
  int inputs = 0;                         // whose gradients tell that the unit's backward is done
  int inputs_left = 0;                    // of them in this backward
  bool running = false;                   // between begin() and end()
  bool in_backward = false;
};

UnitGatherer::UnitGatherer(std::vector<std::shared_ptr<FlatGroup>> groups, std::vector<Unit> units,
                           comm::Group gathers, std::shared_ptr<GradientReducer> reducer,
                           const ShardOptions& options)
    : groups_(std::move(groups)),
      units_(std::move(units)),
      checked_(std::move(gathers)),
      unchecked_(checked_.with_check(comm::Check::Off)),
      reducer_(reducer),
      reshard_(options.reshard_after_forward),
      may_pass_over_(options.unused_parameters == UnusedParameters::Find),
      states_(groups_.size()) {}

// The first step compares what the ranks are about to gather; later ones follow the same order, which note_order() sees to.
void UnitGatherer::gather(std::size_t unit) {
  const auto reducer = reducer_.lock();
  const bool plan_is_known = order_known_ && reducer && reducer->steps() > 0 &&
                             (at::GradMode::is_enabled() || inside_backward());
  for (const std::size_t g : units_[unit].groups)
    groups_[g]->gather(plan_is_known ? unchecked_ : checked_);
}

void UnitGatherer::wait(std::size_t unit) {
  for (const std::size_t g : units_[unit].groups) groups_[g]->wait_gathered();
}

// The unit that comes next, while this one computes.
void UnitGatherer::gather_ahead(std::size_t place, int step) {
  if (!order_known_) return;
  const auto next = static_cast<std::ptrdiff_t>(place) + step;
  if (next < 0 || next >= static_cast<std::ptrdiff_t>(order_.size())) return;
  gather(order_[static_cast<std::size_t>(next)]);
}

void UnitGatherer::begin_model() {
  const std::lock_guard lock(mutex_);
  if (at::GradMode::is_enabled()) ++forwards_;
  if (!order_known_) order_.clear();  // of a forward that threw
  place_ = 0;
  renew();
}

void UnitGatherer::end_model() {
  const std::lock_guard lock(mutex_);
  if (at::GradMode::is_enabled() && !inside_backward()) order_known_ = true;
}

void UnitGatherer::note_order(std::size_t unit) {
  if (place_ > 0 && order_[place_ - 1] == unit) return;
  if (!order_known_) {
    order_.push_back(unit);
  } else if (place_ >= order_.size() || order_[place_] != unit) {
    throw StateError(
        text("unit '", units_[unit].name, "' runs where the first step ran ",
             place_ < order_.size() ? text("unit '", units_[order_[place_]].name, "'")
                                    : std::string("no unit any more")),
        {.hint = "At level Parameters a model runs its units in the same order in every step."});
  }
  ++place_;
}

void UnitGatherer::follow_forward() {
  const std::lock_guard lock(mutex_);
  if (!order_known_)
    throw StateError("a rank without samples in the first step at level Parameters",
                     {.hint = "The order of the units is not known yet: give every rank a sample "
                              "in the first step."});
  for (const std::size_t unit : order_) {
    std::vector<at::Tensor> nothing;
    end(begin(unit, nothing), nothing);
  }
}

void UnitGatherer::follow_backward() {
  const std::lock_guard lock(mutex_);
  const auto reducer = reducer_.lock();
  std::vector<int> uses(groups_.size(), 0);
  for (const std::size_t unit : order_)
    for (const std::size_t g : units_[unit].groups) ++uses[g];
  for (auto unit = order_.rbegin(); unit != order_.rend(); ++unit) {
    const auto call = std::make_shared<Call>(weak_from_this(), *unit);
    call->place = static_cast<std::size_t>(order_.rend() - unit) - 1;
    begin_backward(call);
    for (const std::size_t g : units_[*unit].groups)
      if (--uses[g] == 0 && groups_[g]->trained()) {
        gradients_complete(g);
        // The others may wait for this reduction before they gather the next unit.
        if (reducer) reducer->leave_out(g);
      }
  }
}

std::shared_ptr<UnitGatherer::Call> UnitGatherer::begin(std::size_t unit,
                                                        std::vector<at::Tensor>& inputs) {
  const std::lock_guard lock(mutex_);
  auto call = std::make_shared<Call>(weak_from_this(), unit);
  if (inside_backward()) {
    gather(unit);
    wait(unit);
    return call;
  }
  const bool trains = at::GradMode::is_enabled();
  if (trains) note_order(unit);
  if (trains) call->place = place_ - 1;
  for (const std::size_t g : units_[unit].groups) ++states_[g].holders;
  call->running = true;
  gather(unit);
  if (trains) gather_ahead(place_ - 1, 1);
  wait(unit);
  if (!trains) return call;
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

void UnitGatherer::end(const std::shared_ptr<Call>& call, const std::vector<at::Tensor>& outputs,
                       bool keep) {
  const std::lock_guard lock(mutex_);
  if (!call->running) return;
  call->running = false;
  const bool trains = at::GradMode::is_enabled();
  for (const std::size_t g : units_[call->unit].groups) {
    --states_[g].holders;
    if (!keep && (reshard_ || !trains)) let_go(g);
  }
  if (!trains) return;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    const auto watch = [&call](const at::Tensor& tensor) {
      if (!tensor.requires_grad() || tensor.is_leaf()) return;
      tensor.register_hook([call](const at::Tensor&) {
        const auto owner = call->owner.lock();
        if (!owner) return;
        if (const auto reducer = owner->reducer_.lock()) reducer->arm();
        owner->begin_backward(call);
      });
    };
    watch(output);
    // A layer that writes to a view in place takes it, and its hooks, out of the graph, but not what it is a view of.
    if (output.is_view()) watch(at::Tensor(output._base()));
  }
}

// A rank whose backward passes over units gathers them in its turn, as the others do.
void UnitGatherer::gather_passed_over(std::size_t until) {
  if (!may_pass_over_ || forwards_ > 1 || !order_known_) return;
  if (!passed_) passed_ = order_.size();
  while (*passed_ > until) {
    --*passed_;
    gather(order_[*passed_]);
    gather_ahead(*passed_, -1);
    wait(order_[*passed_]);
  }
}

void UnitGatherer::backward_ended() {
  const std::lock_guard lock(mutex_);
  gather_passed_over(0);
}

void UnitGatherer::begin_backward(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  if (call->in_backward) return;
  call->in_backward = true;
  call->inputs_left = call->inputs;
  in_backward_.push_back(call);
  if (call->place) gather_passed_over(*call->place + 1);
  if (call->place && passed_) passed_ = std::min(*passed_, *call->place);
  if (call->inputs > 0)
    for (const std::size_t g : units_[call->unit].groups) ++states_[g].holders;
  gather(call->unit);
  if (call->place) gather_ahead(*call->place, -1);
  wait(call->unit);
}

void UnitGatherer::input_done(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  if (!call->in_backward || --call->inputs_left > 0) return;
  for (const std::size_t g : units_[call->unit].groups) {
    --states_[g].holders;
    if (states_[g].complete || !groups_[g]->trained()) let_go(g);
  }
}

void UnitGatherer::gradients_complete(std::size_t group) {
  const std::lock_guard lock(mutex_);
  states_[group].complete = true;
  let_go(group);
}

void UnitGatherer::pass_ended() {
  const std::lock_guard lock(mutex_);
  for (const auto& call : in_backward_) call->in_backward = false;
  in_backward_.clear();
  for (GroupState& state : states_) state = {};
  forwards_ = 0;
  passed_.reset();
  for (std::size_t g = 0; g < groups_.size(); ++g) let_go(g);
}

void UnitGatherer::let_go(std::size_t group) {
  if (states_[group].holders == 0 && keep_all_ == 0) groups_[group]->release();
}

void UnitGatherer::gather_all() {
  const std::lock_guard lock(mutex_);
  ++keep_all_;
  renew();
  for (const auto& group : groups_) group->gather(checked_);
  for (const auto& group : groups_) group->wait_gathered();
}

void UnitGatherer::release_all() {
  const std::lock_guard lock(mutex_);
  if (keep_all_ > 0) --keep_all_;
  for (std::size_t g = 0; g < groups_.size(); ++g) let_go(g);
}

void UnitGatherer::renew() {
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_) {
    if (!group->gathered()) continue;
    group->release();
    if (keep_all_ > 0) group->gather(checked_);
  }
  if (keep_all_ > 0)
    for (const auto& group : groups_) group->wait_gathered();
}

}  // namespace trestle::sharding
