#include "trestle/plan/conv/conv_models.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

// Adds the layers of a net one after the other. It holds the shape behind the last one.
class NetBuilder {
 public:
  NetBuilder(std::string name, std::int64_t channels, std::int64_t side)
      : channels_(channels), side_(side) {
    list_.name = std::move(name);
    list_.input = numbers(channels, side);
  }

  int last() const { return static_cast<int>(list_.layers.size()) - 1; }
  std::int64_t channels() const { return channels_; }
  LayerList finish() && { return std::move(list_); }

  struct Convolution {
    std::int64_t to;  // channels
    std::int64_t kernel;
    std::int64_t stride = 1;
    bool bias = false;
  };
  void convolution(const std::string& name, const Convolution& c) {
    const double in = now();
    const std::int64_t from = std::exchange(channels_, c.to);
    side_ /= c.stride;
    const double weights = static_cast<double>(from * c.to * c.kernel * c.kernel);
    add({.name = name,
         .flops = 2 * weights * static_cast<double>(side_ * side_),
         .parameters = weights + static_cast<double>(c.bias ? c.to : 0),
         .output = now(),
         .moved = in + now(),
         .saves_input = true});
  }

  // Dropout of whole channels keeps a mask of one number for each.
  void dropout(const std::string& name) {
    add({.name = name,
         .output = now(),
         .moved = 2 * now(),
         .saved_bytes = 4.0 * static_cast<double>(channels_)});
  }

  // It reads its input for the statistics, and again to apply them.
  void norm(const std::string& name, double parameters) {
    add({.name = name,
         .parameters = parameters,
         .output = now(),
         .moved = 3 * now(),
         .saves_input = true});
  }

  void leaky_relu(const std::string& name) {
    add({.name = name, .output = now(), .moved = 2 * now(), .saves_input = true});
  }

  void relu(const std::string& name) {
    add({.name = name, .output = now(), .moved = 2 * now(), .saves_output = true});
  }

  // It keeps the places of the largest numbers in 8 bytes each.
  void pool(const std::string& name) {
    const double in = now();
    side_ /= 2;
    add({.name = name,
         .output = now(),
         .moved = in + now(),
         .saves_input = true,
         .saved_bytes = 8 * now()});
  }

  void pass(const std::string& name) { add({.name = name}); }

  void upsample(const std::string& name) {
    const double in = now();
    side_ *= 2;
    add({.name = name, .output = now(), .moved = in + now()});
  }

  void join_channels(const std::string& name, int from, std::int64_t channels) {
    channels_ += channels;
    add({.name = name, .output = now(), .moved = 2 * now()});
    list_.skips.push_back({.from = from, .to = last()});
  }

  // The sum with a skip, which may go through a convolution and a norm first.
  struct Sum {
    int from;
    double skip_numbers;  // of the skip
    std::int64_t skip_channels;
    bool projected;
  };
  void sum(const std::string& name, const Sum& s) {
    const double weights = s.projected ? static_cast<double>(s.skip_channels * channels_) : 0;
    LayerFormula layer{.name = name, .output = now(), .moved = 3 * now()};
    if (s.projected) {
      layer.flops = 2 * weights * static_cast<double>(side_ * side_);
      layer.parameters = weights + 2 * static_cast<double>(channels_);
      layer.moved += s.skip_numbers + 4 * now();
      layer.saved_bytes = 4 * (s.skip_numbers + now());  // the inputs of convolution and norm
    }
    add(std::move(layer));
    list_.skips.push_back({.from = s.from, .to = last()});
  }

  void average(const std::string& name) {
    const double in = now();
    side_ = 1;
    add({.name = name, .output = now(), .moved = in + now()});
  }

  double now() const { return numbers(channels_, side_); }

 private:
  static double numbers(std::int64_t channels, std::int64_t side) {
    return static_cast<double>(channels * side * side);
  }
  void add(LayerFormula layer) { list_.layers.push_back(std::move(layer)); }

  LayerList list_;
  std::int64_t channels_, side_;
};

struct CellWidths {
  std::int64_t middle, out;
};

// Only the last unit has the width `out`, unless it is the only one.
void add_cell(NetBuilder& net, const std::string& name, std::int64_t units,
              const CellWidths& widths) {
  for (std::int64_t i = 0; i < units; ++i) {
    const std::string unit = text(name, "_", i);
    net.convolution(unit + "_conv",
                    {.to = i + 1 == units ? widths.out : widths.middle, .kernel = 3});
    net.dropout(unit + "_dropout");
    net.norm(unit + "_norm", 0);
    net.leaky_relu(unit + "_relu");
  }
}

void need_sizes(const char* flag, const std::vector<std::pair<const char*, std::int64_t>>& sizes) {
  constexpr std::int64_t most = 1 << 16;  // so that Bytes holds their products
  for (const auto& [name, size] : sizes)
    if (size < 1 || size > most)
      throw UsageError(text(flag, ": ", name, " is ", size),
                       {.hint = text("Give a number from 1 to ", most, ".")});
}

struct ConvKey {
  const char* key;
  std::int64_t* value;
  std::int64_t most;
};

void read_sizes(const std::string& flag, std::string_view words, const std::vector<ConvKey>& keys) {
  if (trim(words).empty()) return;  // every size has a default
  std::vector<std::string> known, given;
  for (const ConvKey& one : keys) known.emplace_back(one.key);
  for (const std::string& word : split(words, ',')) {
    const std::size_t equals = word.find('=');
    const std::string key = trim(word.substr(0, equals));
    if (equals == std::string::npos)
      throw UsageError(
          text(flag, ": '", word, "' is not key=value"),
          {.hint = text("Write ", flag, " image=192. The keys are ", join(known, ", "), ".")});
    const auto found =
        std::find_if(keys.begin(), keys.end(), [&](const ConvKey& one) { return key == one.key; });
    if (found == keys.end()) throw_unknown("size of " + flag, key, known);
    if (std::find(given.begin(), given.end(), key) != given.end())
      throw UsageError(text(flag, " gives ", key, " twice"));
    given.push_back(key);
    const std::string value = trim(word.substr(equals + 1));
    const auto* end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, *found->value);
    if (error != std::errc() || at != end || *found->value < 1 || *found->value > found->most)
      throw UsageError(text(flag, " ", key, "=", value, ": ", key, " is a whole number from 1 to ",
                            found->most));
  }
}

}  // namespace

LayerList unet_list(const UNetSizes& sizes) {
  need_sizes("U-Net", {{"depth", sizes.depth},
                       {"convolutions", sizes.convolutions},
                       {"base", sizes.base},
                       {"image", sizes.image},
                       {"input_channels", sizes.input_channels},
                       {"output_channels", sizes.output_channels}});
  if (sizes.depth > 20 || sizes.image % (std::int64_t{1} << sizes.depth) != 0)
    throw UsageError(
        text("U-Net: a side of ", sizes.image, " cannot be halved ", sizes.depth, " times"),
        {.hint = "Give an image that is a multiple of 2^depth."});
  if (sizes.base % 2 != 0)
    throw UsageError(text("U-Net: base=", sizes.base, " is odd"),
                     {.hint = "The last level has half of its channels: give an even number."});
  NetBuilder net(text("U-Net (", sizes.convolutions, ", ", sizes.base, ")"), sizes.input_channels,
                 sizes.image);
  struct Kept {
    int layer;
    std::int64_t channels;
  };
  std::vector<Kept> skips;
  for (std::int64_t i = 0; i < sizes.depth; ++i) {
    const std::int64_t width = sizes.base << i;
    add_cell(net, text("encoder_", i), sizes.convolutions, {.middle = width, .out = width});
    net.pass(text("encoder_", i, "_skip"));
    skips.push_back({net.last(), width});
    net.pool(text("encoder_", i, "_down"));
  }
  add_cell(net, "bottleneck", sizes.convolutions,
           {.middle = sizes.base << sizes.depth, .out = sizes.base << (sizes.depth - 1)});
  for (std::int64_t i = sizes.depth - 1; i >= 0; --i) {
    const std::int64_t width = (sizes.base << i) / 2;
    net.upsample(text("decoder_", i, "_up"));
    const Kept skip = skips[static_cast<std::size_t>(i)];
    net.join_channels(text("decoder_", i, "_skip"), skip.layer, skip.channels);
    add_cell(net, text("decoder_", i), sizes.convolutions, {.middle = width, .out = width});
  }
  net.convolution("segment", {.to = sizes.output_channels, .kernel = 1});
  return std::move(net).finish();
}

LayerList resnet101_list(const ResNetSizes& sizes) {
  need_sizes("ResNet-101", {{"image", sizes.image}, {"classes", sizes.classes}});
  if (sizes.image % 32 != 0)
    throw UsageError(text("ResNet-101: a side of ", sizes.image, " cannot be halved five times"),
                     {.hint = "Give an image that is a multiple of 32."});
  NetBuilder net("ResNet-101", 3, sizes.image);
  const auto norm = [&net](const std::string& name) {
    net.norm(name, 2 * static_cast<double>(net.channels()));
  };
  net.convolution("conv1", {.to = 64, .kernel = 7, .stride = 2});
  norm("bn1");
  net.relu("relu");
  net.pool("maxpool");
  constexpr std::int64_t blocks[] = {3, 4, 23, 3};
  for (std::int64_t stage = 0; stage < 4; ++stage)
    for (std::int64_t block = 0; block < blocks[stage]; ++block) {
      const std::string name = text("layer", stage + 1, "_", block);
      const std::int64_t width = std::int64_t{64} << stage;
      const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      net.pass(name + "_identity");
      const NetBuilder::Sum skip{.from = net.last(),
                                 .skip_numbers = net.now(),
                                 .skip_channels = net.channels(),
                                 .projected = block == 0};
      net.convolution(name + "_conv1", {.to = width, .kernel = 1});
      norm(name + "_bn1");
      net.relu(name + "_relu1");
      net.convolution(name + "_conv2", {.to = width, .kernel = 3, .stride = stride});
      norm(name + "_bn2");
      net.relu(name + "_relu2");
      net.convolution(name + "_conv3", {.to = 4 * width, .kernel = 1});
      norm(name + "_bn3");
      net.sum(name + "_residual", skip);
      net.relu(name + "_relu3");
    }
  net.average("avgpool");
  net.pass("flat");
  net.convolution("fc", {.to = sizes.classes, .kernel = 1, .bias = true});
  return std::move(net).finish();
}

LayerList parse_unet(std::string_view words) {
  UNetSizes sizes;
  read_sizes("--unet", words,
             {{"depth", &sizes.depth, 20},
              {"convolutions", &sizes.convolutions, 1000},
              {"base", &sizes.base, 10'000},
              {"image", &sizes.image, 65'536},
              {"input_channels", &sizes.input_channels, 10'000},
              {"output_channels", &sizes.output_channels, 10'000}});
  return unet_list(sizes);
}

LayerList parse_resnet101(std::string_view words) {
  ResNetSizes sizes;
  read_sizes("--resnet101", words,
             {{"image", &sizes.image, 65'536}, {"classes", &sizes.classes, 10'000'000}});
  return resnet101_list(sizes);
}

}  // namespace trestle::plan
