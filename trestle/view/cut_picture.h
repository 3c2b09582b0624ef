#pragma once

#include <string>
#include <vector>

#include "trestle/base/units.h"

// A picture of a model's layers, their costs, and the cut into stages.
//
//   std::string file = to_svg_cut({.title = "unet, cut [2, 1]",
//                                  .layers = {{.name = "in", .forward = 0.001, .backward = 0.002},
//                                             {.name = "middle", .forward = 0.003},
//                                             {.name = "out", .forward = 0.004}},
//                                  .stages = {{.device = "virtual:0", .layers = 2},
//                                             {.device = "virtual:1", .layers = 1}},
//                                  .skips = {{.from = 0, .to = 2}}});
namespace trestle::view {

struct CutPicture {
  struct Layer {
    std::string name;
    double forward = 0;   // seconds of one micro-batch
    double backward = 0;  // the same
    Bytes weights = 0;
    Bytes kept = 0;  // activations of one micro-batch, from forward to backward
  };
  struct Stage {
    std::string device;
    int layers = 0;
    Bytes peak = 0;    // peak memory of the stage or its device; 0 = unknown
    Bytes budget = 0;  // memory limit of its device; 0 = no limit
  };
  struct Skip {  // from a layer to a later layer that is not the next
    int from = 0;
    int to = 0;
  };

  std::string title = {};
  std::string subtitle = {};  // below the title, in a smaller font
  std::vector<Layer> layers = {};
  std::vector<Stage> stages = {};
  std::vector<Skip> skips = {};
};

// Draws a row for each layer, with a bar for its time and one for its bytes in the colour of its
// stage. Dashed lines show the cuts, and arcs show the skips. On the right are each stage's totals,
// with its time as a share of a perfectly even cut's. The middle of a long name is left out; the
// row's tooltip has the whole name. Throws UsageError where the stages do not cover the layers
// exactly, where a skip does not go to a later layer, and for more than 2000 layers.
std::string to_svg_cut(const CutPicture& picture);

}  // namespace trestle::view
