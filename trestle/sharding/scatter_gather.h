#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// A batch split over devices, and put together again. autograd follows both back.
namespace trestle::sharding {

// Pieces of some tensors, one list for each device that got one: of[replica][tensor].
struct Scattered {
  std::vector<std::vector<at::Tensor>> of;
};

// Splits each tensor along `dim` as torch.chunk() does: every piece has ceil(size / devices) rows,
// the last one what is left, so that there may be fewer pieces than devices. Piece i goes to device
// i. An undefined tensor stays undefined for all. Where nothing is there to be split, every device
// gets its turn, as in Python's torch.nn.DataParallel. Throws UsageError for a tensor without
// dimensions, and for tensors that split into different numbers of pieces.
Scattered scatter(const std::vector<at::Tensor>& tensors, const std::vector<at::Device>& devices,
                  std::int64_t dim);

// parts[replica][tensor] joined along `dim` on one device, tensor by tensor. What has no dimensions
// becomes a row, one number for each replica. Throws UsageError where some replicas' tensor is
// undefined and others' is not.
std::vector<at::Tensor> gather(const std::vector<std::vector<at::Tensor>>& parts, at::Device device,
                               std::int64_t dim);

}  // namespace trestle::sharding
