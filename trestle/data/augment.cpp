#include "trestle/data/augment.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty_like.h>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"

// These are plain loops, not ATen operators: they run on a loader's threads, while training uses
// the intra-op threads.
namespace trestle::data {
namespace {

struct FlipName {
  std::string name;
  Flip flip;
};

const std::vector<FlipName>& flips() {
  static const std::vector<FlipName> all = {{"none", Flip::None},
                                            {"horizontal", Flip::Horizontal},
                                            {"vertical", Flip::Vertical},
                                            {"both", Flip::Both}};
  return all;
}

enum class Direction { Forward, Reversed };

// The positions of a new line's samples in the old line, in samples.
std::vector<double> positions(std::int64_t size, double from, double side, Direction direction) {
  std::vector<double> at(static_cast<std::size_t>(size));
  const double length = static_cast<double>(size);
  for (std::int64_t i = 0; i < size; ++i)
    at[static_cast<std::size_t>(i)] = from * length + (static_cast<double>(i) + 0.5) * side - 0.5;
  if (direction == Direction::Reversed) std::ranges::reverse(at);
  return at;
}

struct Neighbours {
  std::int64_t first, second;
  float share;  // weight of the second
};

std::vector<Neighbours> neighbours(const std::vector<double>& positions) {
  const auto last = std::ssize(positions) - 1;
  std::vector<Neighbours> all;
  for (const double position : positions) {
    const double inside = std::clamp(position, 0.0, static_cast<double>(last));
    const auto first = static_cast<std::int64_t>(inside);
    all.push_back({first, std::min<std::int64_t>(first + 1, last),
                   static_cast<float>(inside - static_cast<double>(first))});
  }
  return all;
}

at::Tensor move_picture(const at::Tensor& picture, const std::vector<double>& ys,
                        const std::vector<double>& xs) {
  const auto rows = neighbours(ys), columns = neighbours(xs);
  const std::int64_t width = picture.size(2), plane = picture.size(1) * width;
  at::Tensor out = at::empty_like(picture);
  const float* from = picture.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  for (std::int64_t c = 0; c < picture.size(0); ++c, from += plane) {
    for (const Neighbours& row : rows) {
      const float* upper = from + row.first * width;
      const float* lower = from + row.second * width;
      for (const Neighbours& column : columns) {
        const auto between = [&](const float* line) {
          return line[column.first] + column.share * (line[column.second] - line[column.first]);
        };
        const float above = between(upper);
        *to++ = above + row.share * (between(lower) - above);
      }
    }
  }
  return out;
}

at::Tensor move_mask(const at::Tensor& mask, const std::vector<double>& ys,
                     const std::vector<double>& xs) {
  const auto nearest = [](double position, std::int64_t size) {
    return std::clamp<std::int64_t>(std::llround(position), 0, size - 1);
  };
  at::Tensor out = at::empty_like(mask);
  const std::int64_t* from = mask.const_data_ptr<std::int64_t>();
  std::int64_t* to = out.mutable_data_ptr<std::int64_t>();
  for (const double y : ys) {
    const std::int64_t* line = from + nearest(y, mask.size(0)) * mask.size(1);
    for (const double x : xs) *to++ = line[nearest(x, mask.size(1))];
  }
  return out;
}

float grey_of(const float* pixel, std::int64_t plane, std::int64_t channels) {
  return channels == 3 ? 0.299f * pixel[0] + 0.587f * pixel[plane] + 0.114f * pixel[2 * plane]
                       : pixel[0];
}

// Works in place.
void change_colours(at::Tensor& picture, const Variation& variation) {
  const std::int64_t channels = picture.size(0);
  const std::int64_t plane = picture.size(1) * picture.size(2);
  float* pixels = picture.mutable_data_ptr<float>();
  const auto clipped = [](float value) { return std::clamp(value, 0.0f, 1.0f); };
  const auto brightness = static_cast<float>(variation.brightness);
  const auto contrast = static_cast<float>(variation.contrast);
  const auto saturation = static_cast<float>(variation.saturation);
  for (std::int64_t i = 0; i < channels * plane; ++i) pixels[i] = clipped(pixels[i] * brightness);
  double sum = 0;
  for (std::int64_t i = 0; i < plane; ++i) sum += grey_of(pixels + i, plane, channels);
  const auto mean = static_cast<float>(sum / static_cast<double>(plane));
  for (std::int64_t i = 0; i < channels * plane; ++i)
    pixels[i] = clipped(mean + contrast * (pixels[i] - mean));
  if (channels != 3) return;
  for (std::int64_t i = 0; i < plane; ++i) {
    const float grey = grey_of(pixels + i, plane, channels);
    for (std::int64_t c = 0; c < 3; ++c) {
      float& value = pixels[i + c * plane];
      value = clipped(grey + saturation * (value - grey));
    }
  }
}

void check_share(const char* name, double share) {
  if (!(share >= 0 && share < 1))
    throw UsageError(text("'", name, "' is ", share, ": it must be at least 0 and below 1"));
}

void check_picture(const Sample& sample) {
  const at::Tensor& input = sample.input;
  if (input.defined() && input.dim() == 3 && input.scalar_type() == at::kFloat &&
      input.device().is_cpu())
    return;
  throw UsageError(text("'", sample.name,
                        "' is not a picture: flip, crop and colour change CPU "
                        "tensors of float [channels, height, width]"),
                   {.hint = "Leave them out of [data]."});
}

// Whether the target is a class for each pixel of the input, if that was read.
bool is_mask(const Sample& sample) {
  const at::Tensor &input = sample.input, &target = sample.target;
  if (!target.defined() || target.dim() != 2 || target.scalar_type() != at::kLong) return false;
  return !input.defined() || (target.size(0) == input.size(1) && target.size(1) == input.size(2));
}

}  // namespace

std::vector<std::string> flip_names() {
  std::vector<std::string> names;
  for (const FlipName& flip : flips()) names.push_back(flip.name);
  return names;
}

Flip parse_flip(const std::string& name) { return choose("flip", name, flips()).flip; }

Variation draw_variation(const AugmentOptions& options, std::uint64_t key) {
  check_share("crop", options.crop);
  check_share("colour", options.colour);
  // All numbers are drawn always, so that one option does not change the draws of another.
  Random random(key);
  Variation drawn;
  const bool mirror = random.uniform() < 0.5, turn = random.uniform() < 0.5;
  drawn.mirrored = mirror && (options.flip == Flip::Horizontal || options.flip == Flip::Both);
  drawn.upside_down = turn && (options.flip == Flip::Vertical || options.flip == Flip::Both);
  drawn.side = 1 - options.crop * random.uniform();
  drawn.left = (1 - drawn.side) * random.uniform();
  drawn.top = (1 - drawn.side) * random.uniform();
  for (double* factor : {&drawn.brightness, &drawn.contrast, &drawn.saturation})
    *factor = 1 + options.colour * random.uniform(-1, 1);
  return drawn;
}

Sample vary(Sample sample, const Variation& variation) {
  at::Tensor& input = sample.input;
  const bool target_alone = !input.defined() && sample.target.defined();
  if (!target_alone) check_picture(sample);
  if (variation.mirrored || variation.upside_down || variation.side < 1) {
    const auto down = variation.upside_down ? Direction::Reversed : Direction::Forward;
    const auto along = variation.mirrored ? Direction::Reversed : Direction::Forward;
    const auto ys = [&](std::int64_t size) {
      return positions(size, variation.top, variation.side, down);
    };
    const auto xs = [&](std::int64_t size) {
      return positions(size, variation.left, variation.side, along);
    };
    if (is_mask(sample)) {
      const at::Tensor mask = sample.target.contiguous();
      sample.target = move_mask(mask, ys(mask.size(0)), xs(mask.size(1)));
    }
    if (!target_alone)
      input = move_picture(input.contiguous(), ys(input.size(1)), xs(input.size(2)));
  }
  if (target_alone) return sample;
  if (variation.brightness != 1 || variation.contrast != 1 || variation.saturation != 1) {
    input = input.clone(at::MemoryFormat::Contiguous);
    change_colours(input, variation);
  }
  return sample;
}

}  // namespace trestle::data
