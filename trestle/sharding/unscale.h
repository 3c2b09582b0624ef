#pragma once

#include "trestle/optim/clip_grad_norm.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/sharding/sharded.h"

namespace trestle {

struct UnscaleOptions {
  double max_norm = 0;  // what gradients are clipped to; 0: they are not
  double p = 2;         // of the norm
};

struct UnscaledGradients {
  bool finite = true;  // the step is to be made
  double norm = 0;     // of all gradients together, before they were clipped
};

// GradientScaler::unscale() of a sharded model's gradients, and clipping, with one small reduction
// for both: an infinity in one rank's part of the gradients leaves the step out on all, so the
// scale, too, stays the same everywhere. All ranks call it, with scalers of the same options.
// Gradients that are not finite are not clipped.
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
