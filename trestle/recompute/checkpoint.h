#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trestle/device/detail/visit_tensors.h"
#include "trestle/nn/make_layer.h"
#include "trestle/recompute/checkpoint_options.h"
#include "trestle/recompute/detail/checkpointed_forward.h"

// Activation checkpointing: a function's intermediate results are not kept for the backward, which
// recomputes the function instead (Chen et al., 2016: https://arxiv.org/abs/1604.06174).
//
//   at::Tensor y = checkpoint(block, x);  // a module, or any object with a forward(): nn::Layers
//   y = checkpoint([=](at::Tensor a) { return torch::relu(block->forward(a)) + a; }, x);
//   y = checkpoint({.keep_random = false}, block, x);
//
// Gradients equal those of the plain call, to the bit if both compute in the same order. It works
// like Python's torch.utils.checkpoint(use_reentrant=False):
//
// - The function takes any number of arguments of any copyable types. Its inputs are the tensors
// among them, also in std::optional, std::tuple, std::pair and containers. They may be None, and
// none of them need require a gradient. It returns any type, and checkpoint() returns that.
// - Calls nest. Code inside may call backward() or torch::autograd::grad().
// - The backward may be backward() or torch::autograd::grad(), a second one (retain_graph) or one
// of a gradient (create_graph). Each recomputes the function once, and stops as soon as it has what
// it needs. Each recomputed tensor is freed after its first use.
// - The recomputation has the state of the first run: random numbers, autocast, gradients enabled,
// and the state of modules (CheckpointOptions::modules). nn::checkpointing() tells the two runs
// apart.
// - The function and its captures must live until the backward, and the function must do the same
// in both runs. StateError reports a recomputation that saves another number of tensors than the
// first run; a tensor with another shape, type or device; or, on the CPU and on virtual devices,
// one with other values (it compares a few of them). It gives the tensor's number. It also reports
// an input, a parameter or a saved tensor that was changed in place in between.
// - The function may start threads of its own, and wait for them. The tensors that their operators
// save are kept, not recomputed. Their random numbers are not repeated: if tensors that the calling
// thread saves depend on such numbers, the backward throws StateError. Their changes of buffers are
// undone only for modules in CheckpointOptions::modules.
//
// With gradients disabled, it is the plain call. The first call installs an engine for the whole
// process: install.h. Memory: the inputs live as long as the graph; a copy of the modules' buffers,
// if the modules are known; 3 KB for each generator that was drawn from.
namespace trestle::nn {

namespace detail {

// For Layers, AnyModule: types that have a forward() and cannot be called.
template <class Function, class... Arguments>
concept CalledByForward = !std::is_invocable_v<Function&, Arguments...> &&
                          requires(Function & function, Arguments&&... arguments) {
  function.forward(std::forward<Arguments>(arguments)...);
};

// The function as checkpoint() stores it. A module is called by its forward(). This is not a
// lambda: through a function that returns one, GCC 12 at -O1 loses the references that the stored
// function captures.
template <class Function>
struct KeptFunction {
  Function function;

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    if constexpr (ModuleLike<Function>) {
      return AsModule<Function>::pointer(function)->forward(std::forward<Arguments>(arguments)...);
    } else if constexpr (CalledByForward<Function, Arguments...>) {
      return function.forward(std::forward<Arguments>(arguments)...);
    } else {
      return std::invoke(function, std::forward<Arguments>(arguments)...);
    }
  }
};

template <class Function>
std::vector<std::shared_ptr<torch::nn::Module>> modules_used(const CheckpointOptions& options,
                                                             const Function& function) {
  auto modules = options.modules;
  if constexpr (ModuleLike<Function>) modules.push_back(AsModule<Function>::pointer(function));
  return modules;
}

// The arguments are moved, so that the function may free them, unless it takes references.
template <class Function, class... Arguments>
auto call_with(KeptFunction<Function>& call, std::tuple<Arguments...>& arguments) {
  if constexpr (ModuleLike<Function> || std::is_invocable_v<Function&, Arguments...> ||
                CalledByForward<Function, Arguments...>) {
    return std::apply(call, std::move(arguments));
  } else {
    return std::apply(call, arguments);
  }
}

template <class T>
struct IsView : std::false_type {};
template <class T>
struct IsView<c10::ArrayRef<T>> : std::true_type {};

}  // namespace detail

template <class Function, class... Inputs>
auto checkpoint(const CheckpointOptions& options, Function&& function, Inputs&&... inputs) {
  static_assert((!detail::IsView<std::decay_t<Inputs>>::value && ...),
                "checkpoint() keeps its arguments: pass a std::vector, not a view of one");
  const auto modules = detail::modules_used<std::decay_t<Function>>(options, function);
  using Kept = detail::KeptFunction<std::decay_t<Function>>;
  const std::shared_ptr<Kept> call(new Kept{std::forward<Function>(function)});
  std::tuple<std::decay_t<Inputs>...> arguments(std::forward<Inputs>(inputs)...);
  if (!recompute::gradients_are_on()) return detail::call_with(*call, arguments);

  auto kept = tensors_in(arguments);
  auto others = arguments;  // all but the tensors, which are stored as SavedVariables
  put_tensors(others, std::vector<at::Tensor>(kept.size()));
  if (options.copy_inputs) {
    visit_tensors(arguments, [](at::Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.clone();
    });
  }
  recompute::CheckpointedForward run(options, std::move(kept), tensors_in(arguments),
                                     recompute::state_of(modules),
                                     [call, others](std::vector<at::Tensor> tensors) {
                                       auto again = others;
                                       put_tensors(again, tensors);
                                       tensors.clear();
                                       detail::call_with(*call, again);
                                     });
  auto result = detail::call_with(*call, arguments);
  run.finish(tensors_in(result));
  return result;
}

template <class Function, class... Inputs>
requires(!std::is_same_v<std::decay_t<Function>, CheckpointOptions>) auto checkpoint(
    Function&& function, Inputs&&... inputs) {
  return checkpoint(CheckpointOptions(), std::forward<Function>(function),
                    std::forward<Inputs>(inputs)...);
}

}  // namespace trestle::nn
