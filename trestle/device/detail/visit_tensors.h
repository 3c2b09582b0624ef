#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Finds the tensors in a value of any type, such as an argument or the result of a forward():
// at::Tensor itself, and those in std::optional, std::tuple, std::pair, containers (std::vector,
// std::array, ...) and the values of maps, nested ones too. Values of other types contain none.
// Internal to the library.
namespace trestle {

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

// Owns its elements, unlike a view, and is not an element of itself, unlike a path.
template <class T>
concept Container = requires(T& value) {
  typename T::value_type;
  requires std::is_same_v<decltype(*value.begin()), typename T::value_type&>;
  value.end();
  value.size();
}
&&!std::is_same_v<typename T::value_type, T>;

template <class T>
concept Map = Container<T> && requires {
  typename T::key_type;
  typename T::mapped_type;
};

struct TensorContents {
  bool any = false;   // there may be tensors
  bool only = false;  // there is nothing else
};

template <class T>
constexpr TensorContents tensor_contents();

template <class T>
struct TupleContents;
template <template <class...> class Tuple, class... Ts>
struct TupleContents<Tuple<Ts...>> {
  static constexpr TensorContents value = {
      .any = (tensor_contents<std::remove_const_t<Ts>>().any || ...),
      .only = (tensor_contents<std::remove_const_t<Ts>>().only && ...)};
};

template <class T>
constexpr TensorContents tensor_contents() {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return {.any = true, .only = true};
  } else if constexpr (IsTupleLike<T>::value) {
    return TupleContents<T>::value;
  } else if constexpr (Map<T>) {
    return tensor_contents<std::remove_const_t<typename T::mapped_type>>();
  } else if constexpr (IsOptional<T>::value || Container<T>) {
    return tensor_contents<std::remove_const_t<typename T::value_type>>();
  } else {
    return {};
  }
}

struct IgnoreStructure {
  void operator()(std::size_t) const {}
};

}  // namespace detail

// Whether a value of type T may contain tensors, and whether it contains nothing else.
template <class T>
inline constexpr bool contains_tensors = detail::tensor_contents<std::remove_const_t<T>>().any;
template <class T>
inline constexpr bool contains_only_tensors =
    detail::tensor_contents<std::remove_const_t<T>>().only;

// Calls on_tensor(tensor) for each tensor in `value`, undefined ones too, in order. Calls
// on_structure(number) for the rest of the structure: a container's size, whether an optional has a
// value, the hashes of a map's keys. If these numbers are equal for two values of one type, their
// tensors are at the same places.
template <class T, class OnTensor, class OnStructure>
void visit_tensors(T& value, OnTensor&& on_tensor, OnStructure&& on_structure) {
  using Bare = std::remove_const_t<T>;
  if constexpr (!contains_tensors<Bare>) {
    return;
  } else if constexpr (std::is_same_v<Bare, at::Tensor>) {
    on_tensor(value);
  } else if constexpr (detail::IsOptional<Bare>::value) {
    on_structure(value ? std::size_t{1} : std::size_t{0});
    if (value) visit_tensors(*value, on_tensor, on_structure);
  } else if constexpr (detail::IsTupleLike<Bare>::value) {
    std::apply([&](auto&... each) { (visit_tensors(each, on_tensor, on_structure), ...); }, value);
  } else if constexpr (detail::Map<Bare>) {
    on_structure(value.size());
    for (auto& [key, each] : value) {
      if constexpr (!std::is_same_v<std::remove_cvref_t<OnStructure>, detail::IgnoreStructure>)
        on_structure(std::hash<typename Bare::key_type>()(key));
      visit_tensors(each, on_tensor, on_structure);
    }
  } else {
    on_structure(value.size());
    for (auto& each : value) visit_tensors(each, on_tensor, on_structure);
  }
}

template <class T, class OnTensor>
void visit_tensors(T& value, OnTensor&& on_tensor) {
  visit_tensors(value, on_tensor, detail::IgnoreStructure());
}

template <class T>
std::vector<at::Tensor> tensors_in(const T& value) {
  std::vector<at::Tensor> tensors;
  visit_tensors(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// Replaces the tensors in `value` by these, in the same order.
template <class T>
void put_tensors(T& value, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  visit_tensors(value, [&](at::Tensor& tensor) { tensor = tensors.at(next++); });
}

}  // namespace trestle
