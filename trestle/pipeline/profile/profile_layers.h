#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "trestle/comm/message_log.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/value.h"
#include "trestle/plan/layer_profile.h"

// The cost of each layer, for a balance.
namespace trestle {

// Runs every layer alone, forward and backward, in training mode, on `device`, with the values that
// reach it in the model. `micro_batch`: the model's inputs. Layers move to the device one at a
// time, in place, and back, so the model need not fit. Parameters, their grad(), buffers and modes
// are restored. Each layer runs once to warm up and is then timed for 20 ms, at least twice; the
// median counts. A run of more than a quarter of a second is timed once. A device without a memory
// meter (the CPU) cannot tell what a layer saves: there a value counts as saved by all layers that
// use it, and nothing else does. Operators on a virtual device have the device's number of threads,
// unless a scope of DeviceThreads gives another one. Throws what a layer throws. `log`: that of the
// tensor ranks which split the layers (TensorRanks::log()); the profile then has their messages.
// Inference mode is off meanwhile.
//
// One measurement runs at a time: another thread's call waits. Other tensors on `device` that are
// made or freed meanwhile count as the layers' own.
//
//   const plan::LayerProfile profile = profile_layers(net, {images}, at::Device("virtual:0"));
//   const auto balance = plan::balance_by_time(profile, 2);
plan::LayerProfile profile_layers(const nn::Layers& model, const nn::Values& micro_batch,
                                  at::Device device, MessageLog* log = nullptr);
plan::LayerProfile profile_layers(const nn::Graph& graph, const nn::Values& micro_batch,
                                  at::Device device, MessageLog* log = nullptr);

// Measurements that hold for more than one layer. They spare most of the time where a model repeats
// its layers, or was measured before with other ones.
struct KnownLayers {
  // [layer] layers with the same number from 0 on have equal modules: one of them is measured, if
  // their arguments are alike too. -1 = like no other layer. Empty: all are measured.
  std::vector<int> kind = {};
  // A profile of the same wiring with the same inputs on the same device; null: there is none.
  const plan::LayerProfile* profile = nullptr;
  std::vector<bool> is_known = {};  // [layer] whether its cost is that of `profile`
};
// Whether the backward is measured as I and W too (plan::LayerCost::split). It takes about as long
// again.
enum class SplitBackwards { Leave, Measure };
plan::LayerProfile profile_layers(const nn::Graph& graph, const nn::Values& micro_batch,
                                  at::Device device, MessageLog* log, const KnownLayers& known,
                                  SplitBackwards split = SplitBackwards::Leave);

// The same for a model that fits into no process: a layer that does not exist yet is made when it
// is measured, and freed afterwards.
plan::LayerProfile profile_layers_one_by_one(const nn::Graph& graph, const nn::Values& micro_batch,
                                             at::Device device);

}  // namespace trestle
