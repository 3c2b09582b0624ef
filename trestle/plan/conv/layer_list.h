#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/plan/layer_profile.h"
#include "trestle/plan/machine/machine.h"

// Models as lists of layers with formulas, without a weight. conv_models.h has two of them.
//
//   const plan::LayerList net = plan::unet_list({.image = 192});
//   const double billions = plan::parameters_of(net) / 1e9;
namespace trestle::plan {

// A layer, in numbers for one example. Types and micro-batches come later.
struct LayerFormula {
  std::string name;
  double flops = 0;  // of the forward's products
  double parameters = 0;
  double output = 0;  // numbers that it returns; 0 = it returns its input
  double moved = 0;   // numbers that its forward reads and writes
  // The graph keeps its input or its output until the backward, and bytes beside it.
  bool saves_input = false, saves_output = false;
  double saved_bytes = 0;
};

// A layer's output that a later layer takes beside its own input.
struct SkipFormula {
  int from = 0;
  int to = 1;
};

struct LayerList {
  std::string name;
  double input = 0;  // numbers of one example
  std::vector<LayerFormula> layers = {};
  std::vector<SkipFormula> skips = {};
};

double parameters_of(const LayerList& list);

// FLOPs of the products in forward and backward of `examples`, without recomputation: three times
// those of the forward.
double model_flops(const LayerList& list, double examples);

// The costs of a micro-batch in fp32 on one device. A forward takes
//
//     flops / (matrix_efficiency x peak) + 4 bytes x moved / memory_bandwidth
//
// with peak_fp32 if the machine has one and with peak otherwise, and a backward takes twice that.
// The bytes that the graph keeps are exact. A layer's transient memory is that of the gradients of
// its input, its output and its weights. Throws UsageError for examples below 1.
LayerProfile profile_of(const LayerList& list, std::int64_t examples, const Machine& machine);

}  // namespace trestle::plan
