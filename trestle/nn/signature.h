#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trestle/nn/value.h"

// From a function's C++ type to numbered arguments and outputs. Internal to make_layer.h.
namespace trestle::nn::detail {

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
                  "other std::optional parameters, which are left empty; wrap anything else in a "
                  "lambda");
    return T();
  }
}

// What forward() returns, as a flat list: how many tensors there are, and how to append them.
template <class T>
struct Outputs {
  static constexpr int count = 1;
  static void append(Values& /*to*/, T /*value*/) {
    static_assert(!sizeof(T),
                  "a layer's forward() may return at::Tensor, std::optional<at::Tensor>, "
                  "std::tuple and std::pair of these, and std::vector<at::Tensor>; wrap anything "
                  "else in a lambda");
  }
};
template <>
struct Outputs<at::Tensor> {
  static constexpr int count = 1;
  static void append(Values& to, at::Tensor value) { to.push_back(std::move(value)); }
};
template <>
struct Outputs<std::optional<at::Tensor>> {
  static constexpr int count = 1;
  static void append(Values& to, std::optional<at::Tensor> value) {
    to.push_back(value ? std::move(*value) : at::Tensor());
  }
};
template <>
struct Outputs<std::vector<at::Tensor>> {
  static constexpr int count = -1;  // only a call can tell
  static void append(Values& to, std::vector<at::Tensor> value) { to = std::move(value); }
};
template <class... Ts>
struct Outputs<std::tuple<Ts...>> {
  static_assert(
      ((Outputs<Bare<Ts>>::count >= 0) && ...),
      "a layer's forward() may not return a std::vector inside a std::tuple or std::pair: "
      "how many tensors it has, and so which number the next one gets, would show only "
      "in the call; return one std::vector of all of them, or a tuple of tensors");
  static constexpr int count = (0 + ... + Outputs<Bare<Ts>>::count);
  static void append(Values& to, std::tuple<Ts...> value) {
    std::apply(
        [&to](auto&&... each) {
          (Outputs<Bare<decltype(each)>>::append(to, std::move(each)), ...);
        },
        std::move(value));
  }
};
template <class A, class B>
struct Outputs<std::pair<A, B>> : Outputs<std::tuple<A, B>> {};

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
  static constexpr int outputs = Outputs<Bare<Return>>::count;

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
    Values outputs;
    Outputs<Bare<Return>>::append(
        outputs, callable(to_argument<Parameters>(values, argument_number(Index))...));
    return outputs;
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

}  // namespace trestle::nn::detail
