#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trestle/nn/value.h"

// Any torch module, or any function of tensors, as a layer with numbered arguments and outputs.
namespace trestle::nn {

// A module and how to call it, with its type erased. `arguments` counts the tensors that forward()
// takes; `outputs` the tensors it returns, -1 where only a call can tell (a std::vector of
// tensors).
struct Layer {
  std::string name;                           // in the unsplit model, "down1" or "block1.conv"
  std::shared_ptr<torch::nn::Module> module;  // null for a plain function
  std::function<Values(const Values&)> forward;
  int arguments = 1;
  int required_arguments = 1;  // those behind are std::optional<Tensor> and may be left unconnected
  int outputs = 1;
};

namespace detail {

template <class T>
using Bare = std::remove_cv_t<std::remove_reference_t<T>>;

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
inline constexpr bool is_tensor = std::is_same_v<Bare<T>, at::Tensor>;
template <class T>
inline constexpr bool is_optional_tensor = std::is_same_v<Bare<T>, std::optional<at::Tensor>>;
template <class T>
inline constexpr bool is_layer_argument = is_tensor<T> || is_optional_tensor<T>;

// Turns a value into what a parameter of forward() wants. A std::optional of something else is left
// empty.
template <class Parameter>
Bare<Parameter> to_argument(const Values& values, std::size_t index) {
  using T = Bare<Parameter>;
  const bool given = index < values.size() && values[index].defined();
  if constexpr (is_tensor<T>) {
    return index < values.size() ? values[index] : at::Tensor();
  } else if constexpr (is_optional_tensor<T>) {
    return given ? T(values[index]) : T();
  } else {
    static_assert(IsOptional<T>::value,
                  "a layer's forward() may take at::Tensor and std::optional<at::Tensor>, and "
                  "other std::optional "
                  "parameters, which are left empty; wrap anything else in a lambda");
    return T();
  }
}

inline Values to_values(at::Tensor value) { return {std::move(value)}; }
inline Values to_values(std::optional<at::Tensor> value) {
  return {value ? std::move(*value) : at::Tensor()};
}
inline Values to_values(std::vector<at::Tensor> values) { return values; }
template <class... Ts>
Values to_values(std::tuple<Ts...> values) {
  return std::apply([](auto&&... value) { return Values{to_values(std::move(value))[0]...}; },
                    std::move(values));
}
template <class A, class B>
Values to_values(std::pair<A, B> values) {
  return {to_values(std::move(values.first))[0], to_values(std::move(values.second))[0]};
}

template <class T>
struct OutputCount : std::integral_constant<int, 1> {};
template <>
struct OutputCount<std::vector<at::Tensor>> : std::integral_constant<int, -1> {};
template <class... Ts>
struct OutputCount<std::tuple<Ts...>> : std::integral_constant<int, sizeof...(Ts)> {};
template <class A, class B>
struct OutputCount<std::pair<A, B>> : std::integral_constant<int, 2> {};

template <class Return, class... Parameters>
struct Signature {
  static constexpr int arguments = (0 + ... + (is_layer_argument<Parameters> ? 1 : 0));
  static constexpr int required = [] {
    int seen = 0;
    int last = 0;  // up to the last plain tensor: a value can only be left out behind it
    (((seen += is_layer_argument<Parameters> ? 1 : 0),
      (last = is_tensor<Parameters> ? seen : last)),
     ...);
    return last;
  }();
  static constexpr int outputs = OutputCount<Bare<Return>>::value;

  template <class Callable>
  static Values call(Callable&& callable, const Values& values) {
    return call_each(callable, values, std::index_sequence_for<Parameters...>());
  }

 private:
  // The argument's number of parameter `parameter`: parameters that are no tensors have none and do
  // not count.
  static constexpr std::size_t argument_number(std::size_t parameter) {
    constexpr std::array<bool, sizeof...(Parameters) + 1> counts = {
        is_layer_argument<Parameters>..., false};
    std::size_t number = 0;
    for (std::size_t i = 0; i < parameter; ++i) number += counts[i] ? 1 : 0;
    return number;
  }
  template <class Callable, std::size_t... Index>
  static Values call_each(Callable& callable, const Values& values, std::index_sequence<Index...>) {
    return to_values(callable(to_argument<Parameters>(values, argument_number(Index))...));
  }
};

template <class T>
struct SignatureOf : SignatureOf<decltype(&T::operator())> {};
template <class C, class R, class... P>
struct SignatureOf<R (C::*)(P...)> : Signature<R, P...> {};
template <class C, class R, class... P>
struct SignatureOf<R (C::*)(P...) const> : Signature<R, P...> {};
template <class C, class R, class... P>
struct SignatureOf<R (C::*)(P...) noexcept> : Signature<R, P...> {};
template <class C, class R, class... P>
struct SignatureOf<R (C::*)(P...) const noexcept> : Signature<R, P...> {};
template <class R, class... P>
struct SignatureOf<R (*)(P...)> : Signature<R, P...> {};

}  // namespace detail

// make_layer("conv", torch::nn::Conv2d(1, 8, 3)): a module holder, a std::shared_ptr to a module,
// or a module by value, whose forward() is one ordinary (not overloaded, not template) function.
template <class Impl>
Layer make_layer(std::string name,
                 std::shared_ptr<Impl> module) requires std::is_base_of_v<torch::nn::Module, Impl> {
  using Forward = detail::SignatureOf<decltype(&Impl::forward)>;
  auto call = [module](const Values& values) {
    return Forward::call(
        [&](auto&&... arguments) { return module->forward(std::move(arguments)...); }, values);
  };
  return {std::move(name), module, call, Forward::arguments, Forward::required, Forward::outputs};
}
template <class Impl>
Layer make_layer(std::string name, const torch::nn::ModuleHolder<Impl>& holder) {
  return make_layer(std::move(name), holder.ptr());
}

template <class Impl>
Layer make_layer(std::string name,
                 Impl module) requires std::is_base_of_v<torch::nn::Module, Impl> {
  return make_layer(std::move(name), std::make_shared<Impl>(std::move(module)));
}

// make_layer("flatten", [](at::Tensor x) { return x.flatten(1); }): a function without parameters
// of its own.
template <class Function>
Layer make_layer(std::string name, Function function) requires(
    !std::is_base_of_v<torch::nn::Module, Function> &&
    !std::is_convertible_v<Function, std::shared_ptr<torch::nn::Module>> &&
    !requires { typename Function::ContainedType; }) {
  using Forward = detail::SignatureOf<Function>;
  auto call = [function = std::move(function)](const Values& values) mutable {
    return Forward::call(function, values);
  };
  return {std::move(name), nullptr, call, Forward::arguments, Forward::required, Forward::outputs};
}

// "[4, 3, 32, 48] Float, None": how messages show what a layer was given.
std::string describe(const Values& values);

}  // namespace trestle::nn
