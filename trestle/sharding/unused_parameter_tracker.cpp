// Trained parameters that get no gradient in a backward.
#include <ATen/Functions.h>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/gradient_reducer.h"

namespace trestle::sharding {
namespace {

constexpr const char* as_static =
    "UnusedParameters::Static is for models of which each step is like the first one; Find asks "
    "anew in every step.";

}  // namespace

// Whether the first step has shown that this rank's backwards have no gradient for it.
bool GradientReducer::is_unused(std::size_t group, std::size_t index) const {
  const auto found = first_step_.find(groups_[group]->parameter(index).unsafeGetTensorImpl());
  return found != first_step_.end() && found->second.gradients == 0;
}

void GradientReducer::count_gradient(std::size_t group, std::size_t index) {
  ++pass_->groups[group].gradients[index];
  if (is_unused(group, index))
    throw StateError(text("parameter '", groups_[group]->name(index),
                          "' got a gradient, and got none in the first step"),
                     {.hint = as_static});
}

void GradientReducer::fill_unused() {
  std::vector<std::string> names;
  for (const std::size_t g : trained_) {
    Reduction& reduction = pass_->groups[g];
    if (reduction.begun) continue;
    if (reduction.begun) continue;
    for (std::size_t i = 0; i < reduction.fired.size(); ++i) {
      if (reduction.fired[i] || !groups_[g]->parameter(i).requires_grad() || is_unused(g, i))
        continue;
      reduction.fired[i] = fill(g, i);
      if (!reduction.fired[i]) names.push_back("'" + groups_[g]->name(i) + "'");
    }
    reduction.missing = 0;
  }
  if (names.empty() || !pass_->has_samples ||
      options_.unused_parameters != UnusedParameters::Refuse)
    return;
  throw StateError(text("no gradient came for ", names.size() == 1 ? "parameter " : "parameters ",
                        join(names, ", ")),
                   {.hint = "If they are left out on purpose, set unused_parameters = "
                            "UnusedParameters::Find, or do not train "
                            "them (requires_grad)."});
}

void GradientReducer::complete_without_gradients(std::size_t group) {
  const std::lock_guard lock(mutex_);
  if (!pass_ || !pass_->sync) return;
  Reduction& reduction = pass_->groups[group];
  for (std::size_t i = 0; i < reduction.fired.size(); ++i)
    if (!reduction.fired[i] && groups_[group]->parameter(i).requires_grad())
      reduction.fired[i] = fill(group, i);
  reduction.missing = 0;
  begin_ready();
}

// Each step has as many gradients of each parameter as the first one.
void GradientReducer::check_as_first_step() const {
  if (!pass_->has_samples) return;
  std::vector<std::string> names;
  for (const std::size_t g : trained_) {
    for (std::size_t i = 0; i < groups_[g]->size(); ++i) {
      const auto found = first_step_.find(groups_[g]->parameter(i).unsafeGetTensorImpl());
      if (found == first_step_.end() || !groups_[g]->parameter(i).requires_grad()) continue;
      const int now = pass_->groups[g].gradients[i];
      const int first = found->second.gradients.value_or(now);
      if (now != first)
        names.push_back(text("'", groups_[g]->name(i), "' got ", counted(now, "gradient"), ", and ",
                             first, " in the first step"));
      else if (pass_->groups[g].fired[i] && !found->second.on_any)
        names.push_back(text("'", groups_[g]->name(i),
                             "' has a gradient of a backward inside "
                             "no_sync(), and got none in the first step"));
    }
  }
  if (!names.empty()) throw StateError("parameter " + join(names, "; "), {.hint = as_static});
}

std::vector<std::vector<bool>> GradientReducer::fired_on_any() {
  ++asked_for_unused_;
  std::int64_t count = 0;
  for (const std::size_t g : trained_) count += static_cast<std::int64_t>(groups_[g]->size());
  const at::Tensor bits = at::zeros({count}, at::kByte);
  auto* bit = bits.mutable_data_ptr<std::uint8_t>();
  for (const std::size_t g : trained_)
    for (const bool fired : pass_->groups[g].fired) *bit++ = fired ? 1 : 0;
  unchecked_.all.all_reduce(bits, comm::Reduce::Max).wait();
  const auto* found = bits.const_data_ptr<std::uint8_t>();
  std::vector<std::vector<bool>> fired(groups_.size());
  for (const std::size_t g : trained_)
    for (std::size_t i = 0; i < groups_[g]->size(); ++i) fired[g].push_back(*found++ != 0);
  return fired;
}

std::vector<std::vector<bool>> GradientReducer::used_by_any() {
  if (options_.unused_parameters == UnusedParameters::Find) return fired_on_any();
  const bool is_static = options_.unused_parameters == UnusedParameters::Static;
  const bool is_first = is_static && first_step_.empty();
  if (is_static && !is_first) check_as_first_step();
  const auto fired = is_first ? fired_on_any() : std::vector<std::vector<bool>>(groups_.size());
  std::vector<std::vector<bool>> used(groups_.size());
  for (const std::size_t g : trained_) {
    for (std::size_t i = 0; i < groups_[g]->size(); ++i) {
      const at::Tensor& parameter = groups_[g]->parameter(i);
      const Reduction& own = pass_->groups[g];
      if (is_first) {
        first_step_[parameter.unsafeGetTensorImpl()].on_any = fired[g][i];
        used[g].push_back(fired[g][i]);
      } else if (!is_static || !parameter.requires_grad()) {
        used[g].push_back(own.fired[i] || parameter.requires_grad());
      } else {
        used[g].push_back(first_step_[parameter.unsafeGetTensorImpl()].on_any);
      }
      if (!is_static || !pass_->has_samples || !parameter.requires_grad()) continue;
      auto& first = first_step_[parameter.unsafeGetTensorImpl()].gradients;
      if (!first) first = own.gradients[i];
    }
  }
  return used;
}

}  // namespace trestle::sharding
