#include "trestle/models/model.h"

#include <array>
#include <string_view>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/resnet.h"
#include "trestle/models/resnet50.h"
#include "trestle/models/toy.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/models/unet.h"
#include "trestle/models/unet3d.h"

namespace trestle::models {

namespace {

void set_if_given(std::int64_t& size, std::int64_t given) {
  if (given != 0) size = given;
}

// The sizes common to all models.
template <class Options>
Options sizes(const ModelOptions& options, std::int64_t Options::*inputs) {
  Options sizes;
  set_if_given(sizes.*inputs, options.in_channels);
  set_if_given(sizes.classes, options.classes);
  set_if_given(sizes.width, options.width);
  sizes.seed = options.seed;
  return sizes;
}

UNetOptions unet_options(const ModelOptions& options) {
  UNetOptions unet_options = sizes(options, &UNetOptions::in_channels);
  unet_options.bilinear = options.bilinear;
  return unet_options;
}

UNet3dOptions unet3d_options(const ModelOptions& options) {
  UNet3dOptions unet_options = sizes(options, &UNet3dOptions::in_channels);
  set_if_given(unet_options.depth, options.depth);
  for (const std::string& level : options.pooling)
    unet_options.pooling.push_back(parse_pooling(level));
  unet_options.trilinear = options.bilinear;
  return unet_options;
}

nn::Layers make_transformer(const ModelOptions& options) {
  if (!options.transformer)
    throw UsageError(text("model '", options.name, "' needs the sizes of a transformer"),
                     {.hint = "Set ModelOptions::transformer, or use models::transformer()."});
  return transformer(*options.transformer, {.seed = options.seed,
                                            .attention = options.attention,
                                            .adapters = options.adapters,
                                            .frozen_type = options.frozen_type,
                                            .tensor = options.tensor,
                                            .scores = options.scores,
                                            .recompute_attention = options.recompute_attention});
}

using Rules = std::vector<tensor_parallel::SplitRule>;

Rules no_plan(const ModelOptions&) { return {}; }

struct Maker {
  std::string_view name;
  nn::Layers (*make)(const ModelOptions&);
  Rules (*plan)(const ModelOptions&) = no_plan;  // of tensor parallelism
};
constexpr std::array model_table = {
    Maker{"unet", [](const ModelOptions& o) { return unet(unet_options(o)); },
          [](const ModelOptions& o) { return unet_plan(unet_options(o)); }},
    Maker{"unet3d", [](const ModelOptions& o) { return unet3d(unet3d_options(o)); },
          [](const ModelOptions& o) { return unet3d_plan(unet3d_options(o)); }},
    Maker{"resnet18",
          [](const ModelOptions& o) { return resnet18(sizes(o, &ResNetOptions::in_channels)); },
          [](const ModelOptions&) { return resnet18_plan(); }},
    Maker{
        "resnet18_flat",
        [](const ModelOptions& o) { return resnet18_flat(sizes(o, &ResNetOptions::in_channels)); },
        [](const ModelOptions&) { return resnet18_plan(); }},
    Maker{"resnet50",
          [](const ModelOptions& o) { return resnet50(sizes(o, &ResNet50Options::in_channels)); },
          [](const ModelOptions&) { return resnet50_plan(); }},
    Maker{"gpt2", make_transformer},
    Maker{"llama", make_transformer},
    Maker{"toy", [](const ModelOptions& o) { return toy(sizes(o, &ToyOptions::features)); },
          [](const ModelOptions&) { return toy_plan(); }},
    Maker{"two_linears",
          [](const ModelOptions& o) { return two_linears(sizes(o, &TwoLinearsOptions::features)); },
          [](const ModelOptions&) { return two_linears_plan(); }},
    Maker{"mlp", [](const ModelOptions& o) { return mlp(sizes(o, &MlpOptions::features)); },
          [](const ModelOptions& o) { return mlp_plan(sizes(o, &MlpOptions::features)); }},
};

}  // namespace

nn::Layers make_model(const ModelOptions& options) {
  for (const auto& [name, size] :
       {std::pair<const char*, std::int64_t>{"in_channels", options.in_channels},
        {"classes", options.classes},
        {"width", options.width},
        {"depth", options.depth}}) {
    if (size < 0)
      throw UsageError(text("model '", options.name, "': ", name, " = ", size, " is negative"));
  }
  const Maker& maker = choose("model", options.name, model_table);
  const bool of_volumes = maker.name == "unet3d";
  if (options.bilinear && maker.name != "unet" && !of_volumes) {
    throw UsageError(text("model '", maker.name,
                          "' has no option 'bilinear'; only 'unet' and 'unet3d' have it"));
  }
  for (const auto& [name, given] : {std::pair<const char*, bool>{"depth", options.depth != 0},
                                    {"pooling", !options.pooling.empty()}}) {
    if (!given || of_volumes) continue;
    throw UsageError(
        text("model '", maker.name, "' has no option '", name, "'; only 'unet3d' has it"));
  }
  return maker.make(options);
}

std::vector<tensor_parallel::SplitRule> split_plan(const ModelOptions& options) {
  return choose("model", options.name, model_table).plan(options);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Maker& maker : model_table) names.emplace_back(maker.name);
  return names;
}

}  // namespace trestle::models
