#include "trestle/train/volume_picture.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/metrics.h"
#include "trestle/view/chart/canvas.h"

namespace trestle::train {

namespace {

constexpr int border = 16, space = 12;
constexpr view::Colour true_line = {250, 204, 21};
constexpr view::Colour predicted_line = view::alarm;

// A slice [rows, columns] that is drawn with `scale` pixels for a voxel.
class SlicePicture {
 public:
  SlicePicture(const at::Tensor& grey, int scale)
      : scale_(scale),
        rows_(static_cast<int>(grey.size(0))),
        columns_(static_cast<int>(grey.size(1))),
        image_(data::Image::blank(columns_ * scale, rows_ * scale, 3)) {
    const at::Tensor bytes = grey.mul(255).round().clamp(0, 255).to(at::kByte).contiguous();
    const std::uint8_t* from = bytes.const_data_ptr<std::uint8_t>();
    for (int y = 0; y < image_.height; ++y)
      for (int x = 0; x < image_.width; ++x)
        for (int c = 0; c < 3; ++c) image_.at(x, y, c) = from[y / scale_ * columns_ + x / scale_];
  }

  // A line of `width` pixels along the borders between different ids [rows, columns].
  void contour(const at::Tensor& ids, view::Colour colour, int width) {
    const at::Tensor own = ids.to(at::kLong).contiguous();
    const std::int64_t* id = own.const_data_ptr<std::int64_t>();
    for (int y = 0; y < rows_; ++y)
      for (int x = 0; x < columns_; ++x) {
        const std::int64_t here = id[y * columns_ + x];
        const int before = width / 2;
        if (x + 1 < columns_ && id[y * columns_ + x + 1] != here)
          fill((x + 1) * scale_ - before, y * scale_ - before, width, scale_ + width, colour);
        if (y + 1 < rows_ && id[(y + 1) * columns_ + x] != here)
          fill(x * scale_ - before, (y + 1) * scale_ - before, scale_ + width, width, colour);
      }
  }

  const data::Image& image() const { return image_; }

 private:
  void fill(int left, int top, int width, int height, view::Colour colour) {
    for (int y = std::max(top, 0); y < std::min(top + height, image_.height); ++y)
      for (int x = std::max(left, 0); x < std::min(left + width, image_.width); ++x)
        for (int c = 0; c < 3; ++c) image_.at(x, y, c) = colour[static_cast<std::size_t>(c)];
  }

  int scale_, rows_, columns_;
  data::Image image_;
};

// Values from 0 to 1 between the darkest and the brightest hundredth of all voxels.
at::Tensor in_grey(const at::Tensor& volume) {
  const at::Tensor sorted = std::get<0>(volume.to(at::kFloat).flatten().sort());
  const auto at_share = [&](double share) {
    return sorted[static_cast<std::int64_t>(share * static_cast<double>(sorted.numel() - 1))]
        .item<float>();
  };
  const float low = at_share(0.01), high = at_share(0.99);
  return (volume.to(at::kFloat) - low) / std::max(high - low, 1e-6F);
}

// The slice, row and column with the most voxels above class 0; the middle one of equals.
std::array<std::int64_t, 3> fullest_planes(const at::Tensor& mask) {
  std::array<std::int64_t, 3> planes;
  for (std::int64_t d = 0; d < 3; ++d) {
    const std::array<std::int64_t, 2> within = {d == 0 ? 1 : 0, d == 2 ? 1 : 2};
    const at::Tensor counts = mask.gt(0).sum(within);
    const at::Tensor fullest = counts.eq(counts.max()).nonzero();
    planes[static_cast<std::size_t>(d)] = fullest[fullest.size(0) / 2].item<std::int64_t>();
  }
  return planes;
}

// The examples with the most foreground, in their own order.
std::vector<std::int64_t> shown_examples(const at::Tensor& targets, std::int64_t most) {
  std::vector<std::pair<std::int64_t, std::int64_t>> by_size;
  for (std::int64_t i = 0; i < targets.size(0); ++i)
    by_size.emplace_back(-targets[i].gt(0).sum().item<std::int64_t>(), i);
  std::ranges::sort(by_size);
  std::vector<std::int64_t> shown;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(most, std::ssize(by_size)); ++i)
    shown.push_back(by_size[static_cast<std::size_t>(i)].second);
  std::ranges::sort(shown);
  return shown;
}

std::string three_digits(double value) {
  char words[32];
  std::snprintf(words, sizeof words, "%.3f", value);
  return words;
}

void check_volume_shapes(const at::Tensor& inputs, const at::Tensor& targets,
                         const at::Tensor& output) {
  const bool fits = inputs.dim() == 5 && targets.dim() == 4 && output.dim() == 5 &&
                    targets.sizes().slice(1) == inputs.sizes().slice(2) &&
                    output.sizes().slice(2) == inputs.sizes().slice(2) &&
                    targets.size(0) >= inputs.size(0) && output.size(0) >= inputs.size(0);
  if (fits) return;
  throw UsageError(text("cannot draw volumes ", inputs.sizes(), " with targets ", targets.sizes(),
                        " and output ", output.sizes()));
}

// The largest whole scale that fits `side` pixels.
int scale_for(std::int64_t voxels, int side) {
  return static_cast<int>(std::clamp<std::int64_t>(side / voxels, 1, 8));
}

struct View {
  const char* name;
  std::int64_t dimension;  // that the slice is cut from
};
constexpr std::array views = {View{"slice", 0}, View{"from the front", 1},
                              View{"from the side", 2}};

}  // namespace

data::Image draw_volumes(const at::Tensor& inputs, const at::Tensor& targets,
                         const at::Tensor& output, const PictureText& words) {
  check_volume_shapes(inputs, targets, output);
  const std::vector<std::int64_t> shown = shown_examples(targets.narrow(0, 0, inputs.size(0)), 4);
  const std::int64_t depth = inputs.size(2), height = inputs.size(3), width = inputs.size(4);
  const int scale = scale_for(std::max({depth, height, width}), 256);
  const int wide = static_cast<int>(width) * scale, high = static_cast<int>(height) * scale;
  const int deep = static_cast<int>(depth) * scale;
  const view::Font font;
  const int line = font.height() + 8;
  const int top = border + 3 * line + space;
  const int row_height = std::max(high, deep) + line + space;
  const std::string legend = "yellow: true classes, red: predicted classes";
  const int columns[] = {border, border + wide + space, border + 2 * (wide + space)};
  view::Canvas canvas(
      std::max({columns[2] + high, border + font.width(words.title), border + font.width(legend)}) +
          border,
      top + static_cast<int>(shown.size()) * row_height + border - space);
  canvas.write(font, words.title, border, border);
  canvas.write(font, legend, border, border + line, view::quiet);
  for (std::size_t v = 0; v < views.size(); ++v)
    canvas.write(font, views[v].name, columns[v], top - line, view::quiet);
  for (std::size_t row = 0; row < shown.size(); ++row) {
    const std::int64_t example = shown[row];
    const at::Tensor grey = in_grey(inputs[example][0]), truth = targets[example];
    const at::Tensor guess = output[example].argmax(0);
    const std::array<std::int64_t, 3> planes = fullest_planes(truth);
    const int y = top + static_cast<int>(row) * row_height;
    for (std::size_t v = 0; v < views.size(); ++v) {
      const std::int64_t d = views[v].dimension, at = planes[v];
      SlicePicture picture(grey.select(d, at), scale);
      picture.contour(truth.select(d, at), true_line, std::max(3, scale / 2 + 1));
      picture.contour(guess.select(d, at), predicted_line, std::max(1, scale / 4));
      canvas.draw(picture.image(), columns[v], y);
    }
    const std::string name = static_cast<std::size_t>(example) < words.names.size()
                                 ? words.names[static_cast<std::size_t>(example)] + ", "
                                 : "";
    const nn::Tally dice =
        nn::voxel_dice_tally(output.narrow(0, example, 1), targets.narrow(0, example, 1));
    canvas.write(font,
                 text(name, dice.count == 0 ? "no foreground" : "dice " + three_digits(dice.mean()),
                      "; cut at ", join(planes, ", ")),
                 border, y + std::max(high, deep) + 6, view::quiet);
  }
  return canvas.image();
}

data::Image draw_slices(const at::Tensor& volume, const at::Tensor& mask,
                        const std::string& title) {
  if (volume.dim() != 3 || mask.sizes() != volume.sizes())
    throw UsageError(
        text("cannot draw the slices of ", volume.sizes(), " with a mask of ", mask.sizes()));
  constexpr std::int64_t most = 12, in_a_row = 6;
  const std::int64_t depth = volume.size(0), count = std::min(depth, most);
  const int scale = scale_for(std::max(volume.size(1), volume.size(2)), 192);
  const int wide = static_cast<int>(volume.size(2)) * scale;
  const int high = static_cast<int>(volume.size(1)) * scale;
  const view::Font font;
  const int line = font.height() + 8;
  const int columns = static_cast<int>(std::min(count, in_a_row));
  const int rows = static_cast<int>((count + in_a_row - 1) / in_a_row);
  view::Canvas canvas(2 * border + std::max(columns * (wide + space) - space, font.width(title)),
                      border + line + rows * (high + line + space) + border - space);
  canvas.write(font, title, border, border);
  const at::Tensor grey = in_grey(volume);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t slice = (2 * i + 1) * depth / (2 * count);
    SlicePicture picture(grey[slice], scale);
    picture.contour(mask[slice], predicted_line, std::max(1, scale / 2));
    const int x = border + static_cast<int>(i % in_a_row) * (wide + space);
    const int y = border + line + static_cast<int>(i / in_a_row) * (high + line + space);
    canvas.draw(picture.image(), x, y);
    canvas.write(font, text("slice ", slice), x, y + high + 4, view::quiet);
  }
  return canvas.image();
}

}  // namespace trestle::train
