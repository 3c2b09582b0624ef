#pragma once

#include <vector>

#include "trestle/nn/graph.h"

namespace trestle::pipeline {

// Seconds of forward + backward of every layer, for a balance: each layer alone, on the values that
// reach it, on the device where the layers and `micro_batch` are. Buffers are afterwards as they
// were; no gradient is accumulated.
std::vector<double> profile_layers(const nn::Graph& graph, const nn::Values& micro_batch);

}  // namespace trestle::pipeline
