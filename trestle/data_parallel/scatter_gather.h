#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// Splits a batch over devices and gathers it. Autograd records both.
namespace trestle::data_parallel {

// The slices of each tensor, for each device that got one: of[replica][tensor].
struct Scattered {
  std::vector<std::vector<at::Tensor>> of;
};

// Splits each tensor along `dim` as torch.chunk() does: every slice has ceil(size / devices) rows,
// and the last one the rest, so there may be fewer slices than devices. Slice i is moved to device
// i. An undefined tensor stays undefined for all. Without a defined tensor every device gets an
// entry, as in Python's torch.nn.DataParallel. Throws UsageError for a tensor without dimensions,
// and for tensors that split into different numbers of slices.
Scattered scatter(const std::vector<at::Tensor>& tensors, const std::vector<at::Device>& devices,
                  std::int64_t dim);

// Concatenates parts[replica][tensor] along `dim` on one device, tensor by tensor. A tensor without
// dimensions becomes a row, one element for each replica. Throws UsageError where some replicas'
// tensor is undefined and others' is not.
std::vector<at::Tensor> gather(const std::vector<std::vector<at::Tensor>>& parts, at::Device device,
                               std::int64_t dim);

}  // namespace trestle::data_parallel
