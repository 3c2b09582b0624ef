#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

// Finds the tensors in what a forward() takes or returns: at::Tensor by itself, or in
// std::optional, std::vector, std::array, std::tuple, std::pair, or the values of std::map and
// std::unordered_map, however deeply nested. Internal to sharding.
namespace trestle::sharding::detail {

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
struct IsList : std::false_type {};
template <class T>
struct IsList<std::vector<T>> : std::true_type {};
template <class T, std::size_t N>
struct IsList<std::array<T, N>> : std::true_type {};

template <class T>
struct IsMap : std::false_type {};
template <class Key, class T>
struct IsMap<std::map<Key, T>> : std::true_type {};
template <class Key, class T>
struct IsMap<std::unordered_map<Key, T>> : std::true_type {};

template <class T>
struct IsTuple : std::false_type {};
template <class... Ts>
struct IsTuple<std::tuple<Ts...>> : std::true_type {};
template <class A, class B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

// Can there be a tensor in it? And is everything in it one?
template <class T>
struct Tensors {
  static constexpr bool any = false, all = false;
};
template <>
struct Tensors<at::Tensor> {
  static constexpr bool any = true, all = true;
};
template <class T>
struct Tensors<std::optional<T>> : Tensors<T> {};
template <class T>
struct Tensors<std::vector<T>> : Tensors<T> {};
template <class T, std::size_t N>
struct Tensors<std::array<T, N>> : Tensors<T> {};
template <class Key, class T>
struct Tensors<std::map<Key, T>> : Tensors<T> {};
template <class Key, class T>
struct Tensors<std::unordered_map<Key, T>> : Tensors<T> {};
template <class... Ts>
struct Tensors<std::tuple<Ts...>> {
  static constexpr bool any = (Tensors<Ts>::any || ...), all = (Tensors<Ts>::all && ...);
};
template <class A, class B>
struct Tensors<std::pair<A, B>> : Tensors<std::tuple<A, B>> {};

// Calls tensor(t) for each tensor, in order, and part(n) for what the value is made of: how many a
// container has, whether an optional is there, a map's keys. Two values for which the parts are
// equal have the same tensors at the same places.
template <class T, class OnTensor, class OnPart>
void visit(T& value, OnTensor& tensor, OnPart& part) {
  using Bare = std::remove_const_t<T>;
  if constexpr (!Tensors<Bare>::any) {
    return;
  } else if constexpr (std::is_same_v<Bare, at::Tensor>) {
    tensor(value);
  } else if constexpr (IsOptional<Bare>::value) {
    part(value ? 1 : 0);
    if (value) visit(*value, tensor, part);
  } else if constexpr (IsTuple<Bare>::value) {
    std::apply([&](auto&... each) { (visit(each, tensor, part), ...); }, value);
  } else if constexpr (IsMap<Bare>::value) {
    part(value.size());
    for (auto& [key, each] : value) {
      part(std::hash<typename Bare::key_type>()(key));
      visit(each, tensor, part);
    }
  } else {
    static_assert(IsList<Bare>::value);
    part(value.size());
    for (auto& each : value) visit(each, tensor, part);
  }
}

struct IgnoreParts {
  void operator()(std::size_t) const {}
};

template <class T, class OnTensor>
void visit(T& value, OnTensor tensor) {
  IgnoreParts ignore;
  visit(value, tensor, ignore);
}

}  // namespace trestle::sharding::detail
