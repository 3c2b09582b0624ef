#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "trestle/comm/group.h"

namespace trestle::sharding {

// What moves the running statistics, by how much; undefined tensors where none are kept.
struct RunningStatistics {
  at::Tensor mean = {}, variance = {};
  double momentum = 0;
};

// Batch norm in training over the samples of all ranks of the group, each with its own part, of any
// size. `input` is [samples, channels, ...]; weight and bias are [channels] or undefined. All ranks
// call it together, and each one's backward waits for the others'.
//
// Each rank's mean, squared deviations and count are gathered, so that parts of different sizes are
// exact (Chan, Golub and LeVeque 1979), in double precision; low precisions are normalised in
// float32. The gradients of weight and bias are those of this rank's samples: their sum over ranks
// is the whole batch's. Throws UsageError on all ranks where they have fewer than two values a
// channel together; a second derivative is refused.
at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const RunningStatistics& running, double eps,
                           const comm::Group& group);

// Throws UsageError on all ranks where `options`, in words, are not the same on all, and where two
// ranks have `input` on one virtual device or GPU: they share its backward thread, in which each
// would wait for the other. All ranks call it together.
void check_batch_norm_ranks(const comm::Group& group, const at::Tensor& input,
                            const std::string& options);

}  // namespace trestle::sharding
