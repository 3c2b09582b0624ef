#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// The checks of token ids, for losses and metrics over whole and over split scores. Not installed.
namespace trestle::nn {

// Throws UsageError unless `target` is int64 [N, T] and `scores` are the sizes [N, T, V]. `name` is
// that of the loss or metric.
void check_token_shapes(const char* name, at::IntArrayRef scores, const at::Tensor& target);

// Throws UsageError unless each id is `ignored` or from 0 to vocabulary - 1. The ids of a GPU are
// not checked: that would wait for the device.
void check_token_ids(const char* name, const at::Tensor& target, std::int64_t vocabulary,
                     std::int64_t ignored);

}  // namespace trestle::nn
