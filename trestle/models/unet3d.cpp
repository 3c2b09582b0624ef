#include "trestle/models/unet3d.h"

#include <algorithm>
#include <charconv>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/unet_layers.h"

namespace trestle::models {

namespace {

constexpr std::int64_t most_levels = 8;
constexpr std::int64_t most_factor = 16;

void check_sizes(const UNet3dOptions& options) {
  const bool positive = options.width >= 1 && options.in_channels >= 1 && options.classes >= 1;
  const bool halves = !options.trilinear || options.width % 2 == 0;
  if (positive && halves && options.depth >= 1 && options.depth <= most_levels) return;
  throw UsageError(text("a 3-D U-Net of width ", options.width, ", depth ", options.depth, ", ",
                        options.in_channels, " input channels and ", options.classes,
                        " classes cannot be built"),
                   {.hint = text("All must be positive, the depth at most ", most_levels,
                                 ", and the width even with up-sampling by interpolation.")});
}

void check_pooling(const UNet3dOptions& options) {
  const auto given = static_cast<std::int64_t>(options.pooling.size());
  if (given != 0 && given != options.depth)
    throw UsageError(
        text("'pooling' has ", given, " levels, and the depth of the 3-D U-Net is ", options.depth),
        {.hint = "Give the factors of each level, such as 1x2x2, or none for 2x2x2 "
                 "everywhere."});
  for (const Pooling& factors : options.pooling) {
    const bool in_range =
        std::ranges::all_of(factors, [](std::int64_t f) { return f >= 1 && f <= most_factor; });
    if (in_range && factors != Pooling{1, 1, 1}) continue;
    throw UsageError(
        text("a level cannot pool by ", join(factors, " x ")),
        {.hint = text("Factors are 1 to ", most_factor, ", and one of them is larger than 1.")});
  }
}

std::vector<Pooling> pooling_of(const UNet3dOptions& options) {
  return options.pooling.empty()
             ? std::vector<Pooling>(static_cast<std::size_t>(options.depth), {2, 2, 2})
             : options.pooling;
}

}  // namespace

nn::Layers unet3d(const UNet3dOptions& options) {
  check_sizes(options);
  check_pooling(options);
  std::vector<std::vector<std::int64_t>> factors;
  for (const Pooling& level : pooling_of(options)) factors.emplace_back(level.begin(), level.end());
  return unet_layers<ThreeDimensions>({.in_channels = options.in_channels,
                                       .classes = options.classes,
                                       .width = options.width,
                                       .interpolate = options.trilinear,
                                       .seed = options.seed},
                                      factors);
}

std::vector<tensor_parallel::SplitRule> unet3d_plan(const UNet3dOptions& options) {
  return unet_split_plan(options.trilinear);
}

Pooling smallest_side(const UNet3dOptions& options) {
  check_sizes(options);
  check_pooling(options);
  Pooling side = {1, 1, 1};
  for (const Pooling& level : pooling_of(options))
    for (std::size_t d = 0; d < side.size(); ++d) side[d] *= level[d];
  return side;
}

Pooling parse_pooling(const std::string& words) {
  const std::vector<std::string> factors = split(words, 'x');
  Pooling pooling = {};
  bool good = factors.size() == pooling.size();
  for (std::size_t d = 0; good && d < pooling.size(); ++d) {
    const std::string& word = factors[d];
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), pooling[d]);
    good = error == std::errc() && end == word.data() + word.size();
  }
  if (good) return pooling;
  throw UsageError(text("'", words, "' is no pooling of slices, rows and columns"),
                   {.hint = "Write factors like 1x2x2."});
}

}  // namespace trestle::models
