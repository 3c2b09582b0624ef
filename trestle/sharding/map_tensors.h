#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// What a forward() takes and returns, as its tensors. Internal to sharding.
namespace trestle::sharding {

// Calls change(tensor&) for each tensor in a value: a tensor, or any nesting of std::optional, std::vector, std::pair,
// std::tuple and std::map of them. Other values are left alone.
template <class Value, class Change>
void for_each_tensor(Value& value, const Change& change) {
  using T = std::remove_cv_t<Value>;
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    change(value);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](auto&... parts) { (for_each_tensor(parts, change), ...); }, value);
  } else if constexpr (requires { typename T::mapped_type; }) {
    for (auto& [key, part] : value) for_each_tensor(part, change);
  } else if constexpr (requires {
                         typename T::value_type;
                         value.has_value();
                       }) {
    if (value.has_value()) for_each_tensor(*value, change);
  } else if constexpr (requires {
                         typename T::value_type;
                         value.begin();
                       } &&
                       !std::is_convertible_v<T, std::string_view> &&
                       !std::is_same_v<T, std::vector<bool>>) {
    for (auto& part : value) for_each_tensor(part, change);
  }
}

}  // namespace trestle::sharding
