#pragma once

#include <c10/core/Device.h>

#include "trestle/nn/layers.h"
#include "trestle/nn/value.h"
#include "trestle/plan/layer_profile.h"

// What each layer costs, for a balance.
namespace trestle {

// Runs every layer alone, forward and backward, in training mode, on `device`, with the values that
// reach it; the layers need not fit there all together. Layers go there one at a time, in place, and
// back to where they were; parameters, their grad(), buffers and modes are afterwards as they were.
// `micro_batch`: the model's inputs. Each layer is timed twice after a first run, and the faster run
// counts. On a device without meters (the CPU) a value counts as kept by all layers that take it, and
// nothing is known of what layers keep inside. Throws what a layer throws.
//
//   const plan::LayerProfile profile = profile_layers(net, {images}, at::Device("virtual:0"));
//   const auto balance = plan::balance_by_time(profile, 2);
plan::LayerProfile profile_layers(const nn::Layers& model, const nn::Values& micro_batch,
                                  at::Device device);
plan::LayerProfile profile_layers(const nn::Graph& graph, const nn::Values& micro_batch,
                                  at::Device device);

// The same where no process could hold the whole model: a layer that has not been made is made when its
// turn comes and let go afterwards.
plan::LayerProfile profile_layers_one_by_one(const nn::Graph& graph, const nn::Values& micro_batch,
                                             at::Device device);

}  // namespace trestle
