#pragma once

#include <c10/core/Device.h>

#include "trestle/comm/message_log.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/value.h"
#include "trestle/plan/layer_profile.h"

// The cost of each layer, for a balance.
namespace trestle {

// Runs every layer alone, forward and backward, in training mode, on `device`, with the values that
// reach it in the model. `micro_batch`: the model's inputs. Layers move to the device one at a
// time, in place, and back, so the model need not fit. Parameters, their grad(), buffers and modes
// are restored. Each layer runs once to warm up and is then timed twice; the faster run counts. A
// device without a memory meter (the CPU) cannot tell what a layer saves: there a value counts as
// saved by all layers that use it, and nothing else does. Operators on a virtual device have the
// device's number of threads, unless a scope of DeviceThreads gives another one. Throws what a
// layer throws. `log`: that of the tensor ranks which split the layers (TensorRanks::log()); the
// profile then has their messages.
//
//   const plan::LayerProfile profile = profile_layers(net, {images}, at::Device("virtual:0"));
//   const auto balance = plan::balance_by_time(profile, 2);
plan::LayerProfile profile_layers(const nn::Layers& model, const nn::Values& micro_batch,
                                  at::Device device, MessageLog* log = nullptr);
plan::LayerProfile profile_layers(const nn::Graph& graph, const nn::Values& micro_batch,
                                  at::Device device, MessageLog* log = nullptr);

// The same for a model that fits into no process: a layer that does not exist yet is made when it
// is measured, and freed afterwards.
plan::LayerProfile profile_layers_one_by_one(const nn::Graph& graph, const nn::Values& micro_batch,
                                             at::Device device);

}  // namespace trestle
