#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace trestle::recompute {

namespace detail {

template <class T>
struct IsTupleLike : std::false_type {};
template <class... Ts>
struct IsTupleLike<std::tuple<Ts...>> : std::true_type {};
template <class A, class B>
struct IsTupleLike<std::pair<A, B>> : std::true_type {};

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
concept Container = requires(T& value) {
  typename T::value_type;
  value.begin();
  value.end();
};

template <class T>
constexpr bool holds_tensors();

template <class T>
struct AnyHoldsTensors;
template <template <class...> class List, class... Ts>
struct AnyHoldsTensors<List<Ts...>> {
  static constexpr bool value = (holds_tensors<std::remove_const_t<Ts>>() || ...);
};

// Known from the type alone.
template <class T>
constexpr bool holds_tensors() {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return true;
  } else if constexpr (IsOptional<T>::value) {
    return holds_tensors<typename T::value_type>();
  } else if constexpr (IsTupleLike<T>::value) {
    return AnyHoldsTensors<T>::value;
  } else if constexpr (Container<T>) {
    if constexpr (std::is_same_v<typename T::value_type, T>) {
      return false;  // a path is a container of paths
    } else {
      return holds_tensors<std::remove_const_t<typename T::value_type>>();
    }
  } else {
    return false;
  }
}

}  // namespace detail

// Calls `visit` on every tensor in `value`, None too, in order: on a tensor, and on those in
// std::optional, std::tuple, std::pair and containers (std::vector, std::map, ...), nested ones too. What
// is anything else holds none.
template <class T, class Visit>
void for_each_tensor(T& value, Visit&& visit) {
  using Bare = std::remove_const_t<T>;
  if constexpr (!detail::holds_tensors<Bare>()) {
    return;
  } else if constexpr (std::is_same_v<Bare, at::Tensor>) {
    visit(value);
  } else if constexpr (detail::IsOptional<Bare>::value) {
    if (value) for_each_tensor(*value, visit);
  } else if constexpr (detail::IsTupleLike<Bare>::value) {
    std::apply([&](auto&... each) { (for_each_tensor(each, visit), ...); }, value);
  } else {
    for (auto& each : value) for_each_tensor(each, visit);
  }
}

template <class T>
std::vector<at::Tensor> tensors_in(const T& value) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// Has the tensors in `value` be these, in the same order.
template <class T>
void put_tensors(T& value, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  for_each_tensor(value, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
}

}  // namespace trestle::recompute
