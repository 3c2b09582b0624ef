#pragma once

#include <string>
#include <vector>

#include "trestle/nn/graph.h"

// The rules of wiring; mistakes are sentences. Internal to trestle/nn: use check(graph) and
// Layers::graph().
namespace trestle::nn {

// Mistakes of the layers alone: names, modules used twice, parameters shared.
std::vector<std::string> layer_mistakes(const std::vector<Layer>& layers);

// Mistakes of the edges: each sentence names layers, arguments and taps.
std::vector<std::string> edge_mistakes(const Graph& graph);

// Both.
std::vector<std::string> wiring_mistakes(const Graph& graph);

// Throws one UsageError that lists all mistakes, if there are any.
void throw_mistakes(const std::vector<std::string>& mistakes);

}  // namespace trestle::nn
