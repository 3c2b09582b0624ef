#include "trestle/nn/copies.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "trestle/device/transfer.h"
#include "trestle/nn/boundary.h"

namespace trestle::nn {
namespace {

// Whether each number has a place of its own.
bool has_own_places(const at::Tensor& value) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // stride, size
  for (std::int64_t d = 0; d < value.dim(); ++d)
    if (value.size(d) > 1) dimensions.emplace_back(value.stride(d), value.size(d));
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t used = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride < used) return false;
    used = stride * (size - 1) + used;
  }
  return true;
}

}  // namespace

at::Tensor clone_with_strides(const at::Tensor& value) {
  if (value.layout() != at::kStrided || value.is_non_overlapping_and_dense() ||
      !has_own_places(value))
    return value.clone();
  return at::empty_strided(value.sizes(), value.strides(), value.options()).copy_(value);
}

at::Tensor copy_with_memory(const at::Tensor& value, at::Device device) {
  if (!is_part_of_more(value) || value.layout() != at::kStrided || !has_own_places(value))
    return to_device(value, device).clone();
  const Bytes numbers = memory_of(value) / static_cast<Bytes>(value.element_size());
  const at::Tensor memory = at::empty({numbers}, value.options().device(device));
  return memory.as_strided(value.sizes(), value.strides(), value.storage_offset())
      .copy_(to_device(value, device));
}

}  // namespace trestle::nn
