#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/nn/layers.h"

// Layers in a row with named taps, before they are resolved into a Graph. Internal to trestle/nn.
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
  std::optional<Seed> seed = {};  // of the nested model that it came with, where that has one
};

// The wiring of these layers; `returned` names the taps behind the last layer's outputs. Throws
// UsageError that lists every mistake.
Graph resolve(const std::vector<Entry>& entries, int inputs,
              const std::vector<std::string>& returned);

}  // namespace trestle::nn
