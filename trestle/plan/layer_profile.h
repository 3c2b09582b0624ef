#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trestle/base/units.h"

// What each layer of a model costs, measured alone: what a balance is made from. Times in seconds,
// memory in bytes, of one micro-batch. pipeline/profile_layers.h measures it.
namespace trestle::plan {

struct LayerCost {
  std::string name;
  double forward = 0;
  double backward = 0;
  Bytes parameters = 0;
  Bytes buffers = 0;
  // What its graph keeps from forward to backward, but for its arguments and its outputs.
  Bytes inner = 0;
  Bytes transient = 0;          // the most it needs beyond what it keeps, forward or backward
  Bytes transient_forward = 0;  // the same, forward alone
};

// A tensor that goes from a layer, or from the model's input, to others.
struct ValueCost {
  int from = -1;              // the layer that makes it; -1 = an input of the model
  std::vector<int> to;        // the layers that take it; the number of layers = the model's caller
  std::vector<int> saved_by;  // the layers, of these, whose graph keeps it to the backward
  Bytes bytes = 0;
};

struct LayerProfile {
  std::vector<LayerCost> layers;
  std::vector<ValueCost> values;
  std::vector<std::pair<int, int>> together = {};  // first and last layer that share a parameter
  // What was measured: examples of the micro-batch, and the order in memory of its images
  // ("contiguous" or "channels_last"). 0 and "" = not known.
  int examples = 0;
  std::string memory_format = {};

  double seconds() const;  // of all layers, forward and backward
};

// Throws UsageError for a number that is no cost, and for a value or a pair that names a layer which
// is not there. What takes a profile calls it.
void check(const LayerProfile& profile);

// As JSON, to be kept or read by a person; read back to the same numbers. from_json() throws
// FormatError, with what is wrong.
std::string to_json(const LayerProfile& profile);
LayerProfile layer_profile_from_json(const std::string& text);

}  // namespace trestle::plan
