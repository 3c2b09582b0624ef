#pragma once

#include <string>
#include <vector>

#include "trestle/base/units.h"

// A model's layers, what each costs, and where it is cut into stages.
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
    Bytes kept = 0;  // by one micro-batch's graph, from forward to backward
  };
  struct Stage {
    std::string device;
    int layers = 0;
    Bytes peak = 0;    // the most that it, or its device, needs; 0 = not known
    Bytes budget = 0;  // of its device; 0 = no limit
  };
  struct Skip {  // from a layer to one that is not the next
    int from = 0;
    int to = 0;
  };

  std::string title = {};
  std::string subtitle = {};  // under it, in small letters
  std::vector<Layer> layers = {};
  std::vector<Stage> stages = {};
  std::vector<Skip> skips = {};
};

// As SVG: a row for each layer, with a bar for its time and one for its bytes in the colour of its
// stage; dashed lines where it is cut, arcs for skips, and at the right what each stage adds up to,
// with its share of what a perfectly even cut would give each. Long names lose their middle; the
// whole name is the row's tooltip. Throws UsageError where the stages do not cover the layers one for
// one, where a skip does not go from a layer to a later one, and for more than 2000 layers.
std::string to_svg_cut(const CutPicture& picture);

}  // namespace trestle::view
