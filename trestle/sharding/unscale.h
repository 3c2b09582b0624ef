#pragma once

#include "trestle/optim/clip_grad_norm.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/sharding/sharded.h"

namespace trestle {

struct UnscaleOptions {
  double max_norm = 0;  // gradients are clipped to it; 0: not clipped
  double p = 2;         // of the norm
};

struct UnscaledGradients {
  bool finite = true;  // whether to step the optimizer
  double norm = 0;     // of all gradients together, before clipping
};

// GradientScaler::unscale() and clipping of a sharded model's gradients, with one small reduction
// for both. An infinity in one rank's shards skips the step on all ranks, so the scale stays the
// same everywhere. Gradients that are not finite are not clipped. All ranks call it, with scalers
// of the same options.
//
//   precision::GradientScaler scaler;
//   for (auto& [x, y] : loader) {
//     optimizer->zero_grad();
//     sharded.backward(scaler.scale(torch::cross_entropy_loss(sharded.forward(x), y)));
//     if (unscale(scaler, sharded, {.max_norm = 1.0}).finite) optimizer->step();
//     scaler.update();
//   }
UnscaledGradients unscale(precision::GradientScaler& scaler, Sharded& sharded,
                          const UnscaleOptions& options = {});

}  // namespace trestle
