#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "trestle/comm/group.h"

namespace trestle::sync_batch_norm {

// The running statistics that a batch moves, and by how much. Undefined tensors where there are
// none.
struct RunningStatistics {
  at::Tensor mean = {}, variance = {};
  double momentum = 0;
};

// Batch norm in training over the samples of all ranks of the group, each with its own, any number
// of them. `input` is [samples, channels, ...]; weight and bias are [channels] or undefined. All
// ranks call it together, and each rank's backward waits for all ranks'.
//
// All-gathers each rank's mean, squared deviations and count, which is exact for different numbers
// of samples (Chan, Golub and LeVeque 1979), in double precision. bf16 and fp16 are normalised in
// float32. The gradients of weight and bias are those of this rank's samples: their sum over ranks
// is that of the whole batch. Throws UsageError on all ranks where they have fewer than two values
// per channel together, and for a second derivative.
at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const RunningStatistics& running, double eps,
                           const comm::Group& group);

// Throws UsageError on all ranks where `options`, a description, differ, and where two ranks have
// `input` on one virtual device or GPU: in its backward thread each would wait for the other. All
// ranks call it together.
void check_batch_norm_ranks(const comm::Group& group, const at::Tensor& input,
                            const std::string& options);

}  // namespace trestle::sync_batch_norm
