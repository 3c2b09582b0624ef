#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/sharding/unshard/parameter_unsharder.h"

namespace trestle::sharding {

class ShardEngine;

// The layers [first, last) of a graph: a whole model, or a pipeline's stage.
struct LayerRange {
  const nn::Graph& graph;
  std::size_t first = 0;
  std::size_t last = 0;
};

// A layer's unit at level Parameters.
struct LayerUnit {
  std::size_t layer = 0;  // of the graph
  std::size_t unit = 0;
  ParameterUnsharder::After after = ParameterUnsharder::After::Release;  // its forward
};

// Level Parameters: makes the layers one by one and joins consecutive ones to units of
// ShardOptions::units.bytes bytes, or as ShardOptions::units.names names them. Each unit is sharded
// before the next one's layers are made, so that a model that fits no rank whole can be made.
//
// Returns the layers that have parameters, in the order of a forward.
std::vector<LayerUnit> make_layer_units(const LayerRange& layers, ShardEngine& engine);

// The units of these layers, for ShardEngine::finish().
std::vector<std::size_t> order_of(const std::vector<LayerUnit>& layers);

// Wraps the graph's layers, so that each gathers its unit; the model itself stays unchanged.
// `engine` outlives the graph.
void gather_around_layers(nn::Graph& graph, const std::vector<LayerUnit>& layers,
                          ShardEngine& engine);

}  // namespace trestle::sharding
