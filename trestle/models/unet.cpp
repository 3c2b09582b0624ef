#include "trestle/models/unet.h"

#include "trestle/base/error.h"
#include "trestle/models/unet_layers.h"

namespace trestle::models {

nn::Layers unet(const UNetOptions& options) {
  const std::int64_t w = options.width;
  if (w < 1 || options.in_channels < 1 || options.classes < 1 || (options.bilinear && w % 2 != 0)) {
    throw UsageError(text("a U-Net of width ", w, ", ", options.in_channels, " input channels and ",
                          options.classes, " classes cannot be built"),
                     {.hint = "All must be positive, and the width even with 'bilinear'."});
  }
  const std::vector<std::vector<std::int64_t>> halves(4, {2, 2});
  return unet_layers<TwoDimensions>({.in_channels = options.in_channels,
                                     .classes = options.classes,
                                     .width = w,
                                     .interpolate = options.bilinear,
                                     .seed = options.seed},
                                    halves);
}

std::vector<tensor_parallel::SplitRule> unet_plan(const UNetOptions& options) {
  return unet_split_plan(options.bilinear);
}

}  // namespace trestle::models
