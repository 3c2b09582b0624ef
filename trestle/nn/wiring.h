#pragma once

#include <string>
#include <vector>

#include "trestle/nn/graph.h"

// The rules of wiring, as sentences. Internal to trestle/nn: use check(graph) and Layers::graph().
namespace trestle::nn {

// What is wrong with the layers alone: names, modules used twice, parameters shared.
std::vector<std::string> layer_mistakes(const std::vector<Layer>& layers);

// What is wrong with the edges: each sentence names layers, arguments and taps.
std::vector<std::string> edge_mistakes(const Graph& graph);

// Both.
std::vector<std::string> wiring_mistakes(const Graph& graph);

// Does nothing for none; else throws one UsageError that lists them all.
void throw_mistakes(const std::vector<std::string>& mistakes);

}  // namespace trestle::nn
