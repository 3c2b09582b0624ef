#include "trestle/models/model.h"

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/resnet.h"
#include "trestle/models/toy.h"
#include "trestle/models/unet.h"

namespace trestle::models {

namespace {

void set_if_given(std::int64_t& size, std::int64_t given) {
  if (given != 0) size = given;
}

// The sizes that all models have.
template <class Options>
Options sizes(const ModelOptions& options, std::int64_t Options::*inputs) {
  Options sizes;
  set_if_given(sizes.*inputs, options.in_channels);
  set_if_given(sizes.classes, options.classes);
  set_if_given(sizes.width, options.width);
  sizes.seed = options.seed;
  return sizes;
}

nn::Layers make_unet(const ModelOptions& options) {
  UNetOptions unet_options = sizes(options, &UNetOptions::in_channels);
  unet_options.bilinear = options.bilinear;
  return unet(unet_options);
}

const std::vector<std::pair<std::string, nn::Layers (*)(const ModelOptions&)>>& makers() {
  static const std::vector<std::pair<std::string, nn::Layers (*)(const ModelOptions&)>> all = {
      {"unet", make_unet},
      {"resnet18",
       [](const ModelOptions& o) { return resnet18(sizes(o, &ResNetOptions::in_channels)); }},
      {"resnet18_flat",
       [](const ModelOptions& o) { return resnet18_flat(sizes(o, &ResNetOptions::in_channels)); }},
      {"toy", [](const ModelOptions& o) { return toy(sizes(o, &ToyOptions::features)); }},
      {"mlp", [](const ModelOptions& o) { return mlp(sizes(o, &MlpOptions::features)); }},
  };
  return all;
}

}  // namespace

nn::Layers make_model(const ModelOptions& options) {
  for (const auto& [name, size] :
       {std::pair<const char*, std::int64_t>{"in_channels", options.in_channels},
        {"classes", options.classes},
        {"width", options.width}}) {
    if (size < 0)
      throw UsageError(text("model '", options.name, "': ", name, " = ", size, " is negative"));
  }
  for (const auto& [name, make] : makers()) {
    if (name != options.name) continue;
    if (options.bilinear && name != "unet") {
      throw UsageError(text("model '", name, "' has no option 'bilinear'; only 'unet' has"));
    }
    return make(options);
  }
  const std::string close = nearest(options.name, model_names());
  throw UsageError(text("unknown model '", options.name, "'",
                        close.empty() ? "" : "; did you mean '" + close + "'?"),
                   {.hint = "Models: " + join(model_names(), ", ") + "."});
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : makers()) names.push_back(name);
  return names;
}

}  // namespace trestle::models
