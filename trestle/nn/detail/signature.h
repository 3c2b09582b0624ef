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

// Converts a function's C++ type to numbered arguments and outputs. Internal to make_layer.h.
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

// Converts a value to a parameter of forward(). A std::optional of another type is left empty.
template <class Parameter>
Bare<Parameter> to_argument(const Values& values, std::size_t index) {
  using T = Bare<Parameter>;
  const bool given = index < values.size() && values[index].defined();
  if constexpr (is_tensor<T>) {
    return index < values.size() ? values[index] : at::Tensor();
  } else if constexpr (is_optional_tensor<T>) {
    return given ? T(values[index]) : T();
  } else {
    return T();
  }
}

// The result of forward() as a flat list: the number of tensors, and a function to append them.
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
  static constexpr int count = -1;  // known only after a call
  static void append(Values& to, std::vector<at::Tensor> value) { to = std::move(value); }
};
template <class... Ts>
struct Outputs<std::tuple<Ts...>> {
  static_assert(
      ((Outputs<Bare<Ts>>::count >= 0) && ...),
      "a layer's forward() may not return a std::vector inside a std::tuple or std::pair: "
      "the number of its tensors, and so the number of the next output, would be known only "
      "after the call; return one std::vector of all of them, or a tuple of tensors");
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

// Whether `callable` can be called with these alone, because later parameters have defaults.
template <class Callable, class... Parameters>
concept CallableWith = requires(Callable& callable) {
  callable(std::declval<Bare<Parameters>>()...);
};

template <class Callable, class Chosen, class Left>
struct LeastPrefix;  // the smallest number of parameters to call it with
template <class Callable, class... Chosen, class... Left>
struct LeastPrefix<Callable, std::tuple<Chosen...>, std::tuple<Left...>> {
  static constexpr std::size_t value = [] {
    if constexpr (CallableWith<Callable, Chosen...> || sizeof...(Left) == 0) {
      return sizeof...(Chosen);
    } else {
      return []<class Next, class... Rest>(std::tuple<Next, Rest...>*) {
        return LeastPrefix<Callable, std::tuple<Chosen..., Next>, std::tuple<Rest...>>::value;
      }(static_cast<std::tuple<Left...>*>(nullptr));
    }
  }();
};

template <class Callable, class Return, class... Parameters>
struct Signature {
  static_assert(CallableWith<Callable, Parameters...>,
                "a layer's forward() must take its tensors by value or by const reference");
  // `least`: parameters that must be given (the rest have defaults). `most`: parameters that can be
  // given. All parameters from the first non-tensor with a default on keep their defaults.
  static constexpr std::size_t least =
      LeastPrefix<Callable, std::tuple<>, std::tuple<Bare<Parameters>...>>::value;
  static constexpr std::size_t most = [] {
    constexpr std::array<bool, sizeof...(Parameters) + 1> tensor = {
        is_layer_argument<Parameters>..., false};
    constexpr std::array<bool, sizeof...(Parameters) + 1> optional = {
        IsOptional<Bare<Parameters>>::value..., false};
    std::size_t number = 0;
    while (tensor[number] || (optional[number] && number < least)) ++number;
    return number;
  }();
  static_assert(least <= most,
                "a layer's forward() may take at::Tensor and std::optional<at::Tensor>, other "
                "std::optional parameters, which are left empty, and behind these whatever has a "
                "default, which it keeps; wrap anything else in a lambda");

  // The number of tensor arguments before that parameter.
  static constexpr std::size_t arguments_before(std::size_t parameter) {
    constexpr std::array<bool, sizeof...(Parameters) + 1> counts = {
        is_layer_argument<Parameters>..., false};
    std::size_t number = 0;
    for (std::size_t i = 0; i < parameter; ++i) number += counts[i] ? 1 : 0;
    return number;
  }
  static constexpr int arguments = static_cast<int>(arguments_before(most));
  static constexpr int required = [] {  // up to the last plain tensor without a default
    constexpr std::array<bool, sizeof...(Parameters) + 1> plain = {is_tensor<Parameters>..., false};
    std::size_t number = least;
    while (number > 0 && !plain[number - 1]) --number;
    return static_cast<int>(arguments_before(number));
  }();
  static constexpr int outputs = Outputs<Bare<Return>>::count;

  // Passes all parameters up to the last given value; later ones keep their defaults.
  template <std::size_t Count = least>
  static Values call(Callable& callable, const Values& values) {
    if constexpr (Count < most) {
      for (std::size_t i = arguments_before(Count); i < values.size(); ++i) {
        if (values[i].defined()) return call<Count + 1>(callable, values);
      }
    }
    return call_each(callable, values, std::make_index_sequence<Count>());
  }

 private:
  template <std::size_t... Index>
  static Values call_each(Callable& callable, const Values& values, std::index_sequence<Index...>) {
    using All = std::tuple<Parameters...>;
    Values outputs;
    Outputs<Bare<Return>>::append(outputs, callable(to_argument<std::tuple_element_t<Index, All>>(
                                               values, arguments_before(Index))...));
    return outputs;
  }
};

// `Function`: the type of the callable's operator(), or of the function that it points to.
template <class Callable, class Function>
struct SignatureOf;
template <class T, class C, class R, class... P>
struct SignatureOf<T, R (C::*)(P...)> : Signature<T, R, P...> {};
template <class T, class C, class R, class... P>
struct SignatureOf<T, R (C::*)(P...) const> : Signature<T, R, P...> {};
template <class T, class C, class R, class... P>
struct SignatureOf<T, R (C::*)(P...) noexcept> : Signature<T, R, P...> {};
template <class T, class C, class R, class... P>
struct SignatureOf<T, R (C::*)(P...) const noexcept> : Signature<T, R, P...> {};
template <class T, class R, class... P>
struct SignatureOf<T, R (*)(P...)> : Signature<T, R, P...> {};

template <class Callable>
struct FunctionOf : SignatureOf<Callable, decltype(&Callable::operator())> {};
template <class R, class... P>
struct FunctionOf<R (*)(P...)> : Signature<R (*)(P...), R, P...> {};
template <class R, class... P>
struct FunctionOf<R (*)(P...) noexcept> : Signature<R (*)(P...) noexcept, R, P...> {};

}  // namespace trestle::nn::detail
