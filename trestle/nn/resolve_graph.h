#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/nn/layers.h"

// A sequence of layers with named taps, and its resolution into a Graph. Internal to trestle/nn.
namespace trestle::nn {

inline constexpr int kept_input = -1;  // Tap::output of keep_input

struct Tap {
  std::string name;  // full, with the containers' names
  int output = 0;
};

struct Entry {
  Layer layer;
  std::vector<Tap> kept = {};
  std::vector<std::string> taken = {};  // full names, in the order of the arguments
  std::optional<std::vector<int>> passed_on = {};
  std::optional<Seed> seed = {};  // of the nested model that added the layer, if it has one
};

// Resolves the wiring of these layers; `returned` lists the taps after the last layer's outputs.
// Throws UsageError that lists every mistake.
Graph resolve(const std::vector<Entry>& entries, int inputs,
              const std::vector<std::string>& returned);

}  // namespace trestle::nn
