#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trestle/nn/make_layer.h"
#include "trestle/recompute/checkpoint_options.h"
#include "trestle/recompute/first_run.h"
#include "trestle/recompute/tensors_in.h"

// Activation checkpointing: what a function computes on its way is not kept for the backward, which
// runs it again instead (Chen and others, 2016: https://arxiv.org/abs/1604.06174).
//
//   at::Tensor y = checkpoint(block, x);  // a module, or what else has a forward(): nn::Layers
//   y = checkpoint([=](at::Tensor a) { return torch::relu(block->forward(a)) + a; }, x);
//   y = checkpoint({.keep_random = false}, block, x);
//
// Gradients are those of the plain call, to the bit where both compute in the same order. It works as
// torch.utils.checkpoint(use_reentrant=False) of Python does:
//
// - The function takes any number of arguments of any types that can be copied. Tensors among them, and
//   in std::optional, std::tuple, std::pair and containers, are its inputs; they may be None, and none of
//   them need require a gradient. It returns anything, and that is what checkpoint() returns.
// - Calls nest; what runs inside may itself call backward() or torch::autograd::grad().
// - The backward may be backward() or torch::autograd::grad(), a second one (retain_graph) or one of
//   a gradient (create_graph). Each runs the function again, once, and stops it as soon as it has what is
//   needed; what it computed goes with its first use.
// - The second run finds what the first one found: random numbers, autocast, gradients switched on, and
//   the state of modules (CheckpointOptions::modules). nn::checkpointing() tells the two apart.
// - The function and what it captures must live until the backward, and must do the same both times. A
//   second run that saves another number of tensors than the first, or others by shape, type or device,
//   throws StateError that names the tensor by its number. So does an input, a parameter or a saved
//   tensor that was changed in place in between. Threads that it starts itself are not watched: they
//   draw other random numbers the second time, and what they change in place they change twice.
//
// Where gradients are off, it is the plain call. The first call installs something for the whole
// process: install.h. What it takes: the inputs stay as long as the graph; a copy of the modules'
// buffers, if they are known; 3 KB for a generator that was drawn from.
namespace trestle::nn {

namespace detail {

// Layers, an AnyModule: what has a forward() and cannot be called itself.
template <class Function, class... Arguments>
concept CalledByForward = !std::is_invocable_v<Function&, Arguments...> &&
                          requires(Function & function, Arguments&&... arguments) {
  function.forward(std::forward<Arguments>(arguments)...);
};

// What checkpoint() keeps of a function. A module is called by its forward(). No lambda: through a
// function that returns one, GCC 12 at -O1 loses sight of what the kept function captures by reference.
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

// The arguments are given away, so that the function may let them go, unless it wants references.
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

  auto kept = recompute::tensors_in(arguments);
  auto others = arguments;  // all but the tensors, which are kept in a way that autograd knows
  recompute::put_tensors(others, std::vector<at::Tensor>(kept.size()));
  if (options.copy_inputs) {
    recompute::for_each_tensor(arguments, [](at::Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.clone();
    });
  }
  recompute::FirstRun run(options, std::move(kept), recompute::tensors_in(arguments),
                          recompute::state_of(modules),
                          [call, others](std::vector<at::Tensor> tensors) {
                            auto again = others;
                            recompute::put_tensors(again, tensors);
                            tensors.clear();
                            detail::call_with(*call, again);
                          });
  auto result = detail::call_with(*call, arguments);
  run.finish(recompute::tensors_in(result));
  return result;
}

template <class Function, class... Inputs>
requires(!std::is_same_v<std::decay_t<Function>, CheckpointOptions>) auto checkpoint(
    Function&& function, Inputs&&... inputs) {
  return checkpoint(CheckpointOptions(), std::forward<Function>(function),
                    std::forward<Inputs>(inputs)...);
}

}  // namespace trestle::nn
