#include "trestle/sharding/hooks/gradient_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>

namespace trestle::sharding {
namespace {

using torch::autograd::variable_list;

class Hook final : public torch::autograd::FunctionPostHook {
 public:
  explicit Hook(std::function<void()> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

}  // namespace

void GradientHooks::add(const at::Tensor& parameter, std::function<void()> call) {
  const bool frozen = !parameter.requires_grad();
  if (frozen)
    parameter.requires_grad_(true);  // autograd has an accumulator for what is trained alone
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  if (frozen) parameter.requires_grad_(false);
  const std::uintptr_t hook = accumulator->add_post_hook(std::make_unique<Hook>(std::move(call)));
  entries_.push_back({.accumulator = std::move(accumulator), .hook = hook});
}

void GradientHooks::clear() {
  for (const Entry& entry : entries_) entry.accumulator->del_post_hook(entry.hook);
  entries_.clear();
}

bool GradientHooks::watched(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  const auto& hooks = accumulator->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const Hook*>(hook.get()) != nullptr;
  });
}

bool GradientHooks::attached(std::size_t i, const at::Tensor& parameter) const {
  return torch::autograd::impl::try_get_grad_accumulator(parameter) == entries_[i].accumulator;
}

GradientHooks::Use GradientHooks::use_in_this_backward() const {
  const auto* plan = torch::autograd::get_current_graph_task_exec_info();
  if (!plan || plan->empty()) return Use::Accumulates;
  bool returns = false;
  for (const Entry& entry : entries_) {
    const auto found = plan->find(entry.accumulator.get());
    if (found == plan->end()) continue;
    if (found->second.needed_) return Use::Accumulates;
    returns = returns || found->second.captures_;
  }
  return returns ? Use::Returns : Use::None;
}

}  // namespace trestle::sharding
