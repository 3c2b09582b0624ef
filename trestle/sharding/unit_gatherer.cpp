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
    for (const std::size_t g : gatherer->units_[unit].groups) {
      --gatherer->states_[g].holders;
      gatherer->let_go(g);
    }
  }

  std::weak_ptr<UnitGatherer> owner;
  std::size_t unit;
  int inputs = 0;        // whose gradients tell that the unit's backward is done
  int inputs_left = 0;   // of them in this backward
  bool running = false;  // between begin() and end()
  bool in_backward = false;
};

UnitGatherer::UnitGatherer(std::vector<std::shared_ptr<FlatGroup>> groups, std::vector<Unit> units,
                           comm::Group gathers, std::shared_ptr<GradientReducer> reducer,
                           bool reshard)
    : groups_(std::move(groups)),
      units_(std::move(units)),
      checked_(std::move(gathers)),
      unchecked_(checked_.with_check(comm::Check::Off)),
      reducer_(reducer),
      reshard_(reshard),
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
  if (at::GradMode::is_enabled() && !order_.empty()) order_known_ = true;
  place_ = 0;
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
  std::vector<int> uses(groups_.size(), 0);
  for (const std::size_t unit : order_)
    for (const std::size_t g : units_[unit].groups) ++uses[g];
  for (auto unit = order_.rbegin(); unit != order_.rend(); ++unit) {
    begin_backward(std::make_shared<Call>(weak_from_this(), *unit));
    for (const std::size_t g : units_[*unit].groups)
      if (--uses[g] == 0 && groups_[g]->trained()) gradients_complete(g);
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
    output.register_hook([call](const at::Tensor&) {
      const auto owner = call->owner.lock();
      if (!owner) return;
      if (const auto reducer = owner->reducer_.lock()) reducer->arm();
      owner->begin_backward(call);
    });
  }
}

void UnitGatherer::begin_backward(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  if (call->in_backward) return;
  call->in_backward = true;
  call->inputs_left = call->inputs;
  in_backward_.push_back(call);
  if (call->inputs > 0)
    for (const std::size_t g : units_[call->unit].groups) ++states_[g].holders;
  gather(call->unit);
  const auto place = std::find(order_.rbegin(), order_.rend(), call->unit);
  if (place != order_.rend()) gather_ahead(static_cast<std::size_t>(order_.rend() - place) - 1, -1);
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
  for (std::size_t g = 0; g < groups_.size(); ++g) let_go(g);
}

void UnitGatherer::let_go(std::size_t group) {
  if (states_[group].holders == 0 && !keep_all_) groups_[group]->release();
}

void UnitGatherer::gather_all() {
  const std::lock_guard lock(mutex_);
  keep_all_ = true;
  for (const auto& group : groups_) group->gather(checked_);
  for (const auto& group : groups_) group->wait_gathered();
}

void UnitGatherer::release_all() {
  const std::lock_guard lock(mutex_);
  keep_all_ = false;
  for (std::size_t g = 0; g < groups_.size(); ++g) let_go(g);
}

}  // namespace trestle::sharding
