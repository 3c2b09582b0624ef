#pragma once

#include <vector>

#include "trestle/deepspeed/config/config.h"
#include "trestle/mesh/layout/mesh_layout.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/sharding/options/options.h"

// Converts a configuration of DeepSpeed into the options of trestle.
namespace trestle::deepspeed {

// Stage 0 replicates the model along "replicate", stages 1 to 3 shard it along "shard"; with
// mics_shard_size stage 3 does both. fp16 and bf16 need master weights, so stage 0 with them is a
// mesh with one shard: each rank holds all of it.
std::vector<mesh::Dimension> mesh_dimensions(const DeepspeedConfig& config);
ShardOptions shard_options(const DeepspeedConfig& config);

// From stage 1 on an overflow at the lowest scale is an error, as in DeepSpeed; at stage 0 the
// scale stays there.
precision::GradientScalerOptions scaler_options(const DeepspeedConfig& config);

}  // namespace trestle::deepspeed
