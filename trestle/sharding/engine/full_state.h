#pragma once

#include "trestle/device/named_tensors.h"

// A sharded model's state dict with whole tensors.
namespace trestle::sharding {

class ShardEngine;

// Whole copies of all parameters and buffers, on the CPU. All ranks call it.
NamedTensors full_state(ShardEngine& engine);
// Throws UsageError that lists names that are missing, names that the model lacks, and shapes that
// differ.
void load_full_state(ShardEngine& engine, const NamedTensors& state);

}  // namespace trestle::sharding
