#include "trestle/data_parallel/scatter_gather.h"

#include <ATen/Functions.h>

#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/transfer.h"

namespace trestle::data_parallel {
namespace {

std::string shape(const at::Tensor& tensor) { return text("[", join(tensor.sizes(), ", "), "]"); }

std::vector<at::Tensor> split_evenly(const at::Tensor& tensor, std::size_t number,
                                     std::size_t slices, std::int64_t dim) {
  if (tensor.dim() == 0) {
    throw UsageError(
        text("tensor ", number, " of the arguments has no dimension to be split along"),
        {.hint =
             "Pass a number as a number, not as a tensor: it goes to every replica. Or give the "
             "tensor one row for each sample."});
  }
  const std::int64_t dimensions = tensor.dim();
  if (dim < -dimensions || dim >= dimensions) {
    throw UsageError(text("tensor ", number, " of the arguments, ", shape(tensor),
                          ", has no dimension ", dim, " to be split along"),
                     {.hint = "DataParallelOptions::dim is the dimension of the samples."});
  }
  return tensor.chunk(static_cast<std::int64_t>(slices), dim);
}

at::Tensor join_parts(const std::vector<at::Tensor>& parts, std::size_t number, std::int64_t dim) {
  const std::int64_t dimensions = parts[0].dim();
  if (dimensions == 0) return at::stack(parts);
  if (dim < -dimensions || dim >= dimensions) {
    throw UsageError(text("output ", number, " of the replicas, ", shape(parts[0]),
                          " of the first one, has no dimension ", dim, " to be joined along"),
                     {.hint = "An output must have the samples' dimension, or no dimension."});
  }
  return at::cat(parts, dim);
}

}  // namespace

Scattered scatter(const std::vector<at::Tensor>& tensors, const std::vector<at::Device>& devices,
                  std::int64_t dim) {
  std::vector<std::vector<at::Tensor>> split_tensors(tensors.size());
  const std::size_t none = tensors.size();
  std::size_t first = none;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    split_tensors[i] = split_evenly(tensors[i], i, devices.size(), dim);
    if (first == none) first = i;
    if (split_tensors[i].size() == split_tensors[first].size()) continue;
    throw UsageError(text("the arguments' tensors split differently over ", devices.size(),
                          " devices: tensor ", first, ", ", shape(tensors[first]), ", into ",
                          split_tensors[first].size(), " slices along dimension ", dim, ", tensor ",
                          i, ", ", shape(tensors[i]), ", into ", split_tensors[i].size()),
                     {.hint = "Give each of them one row for each sample."});
  }
  const std::size_t slices = first == none ? devices.size() : split_tensors[first].size();
  Scattered result;
  result.of.resize(slices);
  for (std::size_t r = 0; r < slices; ++r) {
    for (const auto& split_tensor : split_tensors)
      result.of[r].push_back(split_tensor.empty() ? at::Tensor()
                                                  : to_device(split_tensor[r], devices[r]));
  }
  return result;
}

std::vector<at::Tensor> gather(const std::vector<std::vector<at::Tensor>>& parts, at::Device device,
                               std::int64_t dim) {
  std::vector<at::Tensor> result;
  for (std::size_t i = 0; i < parts[0].size(); ++i) {
    std::vector<at::Tensor> slices;
    for (const auto& of_replica : parts) {
      if (of_replica[i].defined()) slices.push_back(to_device(of_replica[i], device));
    }
    if (!slices.empty() && slices.size() != parts.size()) {
      throw UsageError(text("output ", i, " of the replicas is a tensor on ", slices.size(), " of ",
                            parts.size(), " of them"),
                       {.hint = "Whether an output is defined must not depend on the samples."});
    }
    result.push_back(slices.empty() ? at::Tensor() : join_parts(slices, i, dim));
  }
  return result;
}

}  // namespace trestle::data_parallel
