#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "trestle/nn/graph.h"

namespace trestle::sharding {

class ShardEngine;

// Level Parameters, nn::Layers: makes the layers one by one and joins consecutive ones to units of
// ShardOptions::units.bytes bytes, or as ShardOptions::units.names names them. Each unit is sharded
// before the next one's layers are made, so that a model that fits no rank whole can be made. Then
// wraps the graph's layers, so that each gathers its unit; the model itself stays unchanged.
// `engine` outlives the graph.
//
// Returns the units of the layers in the order of a forward.
std::vector<std::size_t> make_layer_units(nn::Graph& graph, ShardEngine& engine);

}  // namespace trestle::sharding
