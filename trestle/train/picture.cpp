#include "trestle/train/picture.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdio>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/metrics.h"
#include "trestle/view/chart/canvas.h"

namespace trestle::train {

namespace {

constexpr int margin = 16;
constexpr int gap = 12;

// float [C, H, W] in [0, 1] -> 8-bit.
data::Image to_image(const at::Tensor& input) {
  const int channels = static_cast<int>(input.size(0));
  if (channels != 1 && channels != 3)
    throw UsageError(text("a picture has 1 or 3 channels, not ", channels));
  const at::Tensor bytes =
      input.mul(255).round().clamp(0, 255).to(at::kByte).permute({1, 2, 0}).contiguous();
  data::Image image = data::Image::blank(static_cast<int>(input.size(2)),
                                         static_cast<int>(input.size(1)), channels);
  std::copy_n(bytes.const_data_ptr<std::uint8_t>(), image.pixels.size(), image.pixels.begin());
  return image;
}

void check_shapes(const at::Tensor& inputs, const at::Tensor& targets, const at::Tensor& output,
                  std::int64_t dimensions) {
  if (inputs.dim() != 4 || output.dim() != dimensions || targets.dim() != dimensions - 1 ||
      output.size(0) < inputs.size(0) || targets.size(0) < inputs.size(0))
    throw UsageError(text("cannot draw inputs ", inputs.sizes(), " with targets ", targets.sizes(),
                          " and output ", output.sizes()));
}

std::string rounded_metric(double value) {
  char words[32];
  std::snprintf(words, sizeof words, "%.3f", value);
  return words;
}

std::string name_of(const PictureText& words, std::int64_t row) {
  return static_cast<std::size_t>(row) < words.names.size()
             ? words.names[static_cast<std::size_t>(row)]
             : "";
}

}  // namespace

data::Image colour_mask(const at::Tensor& mask, std::int64_t classes) {
  const at::Tensor ids = mask.to(at::kLong).contiguous();
  data::Image image =
      data::Image::blank(static_cast<int>(mask.size(1)), static_cast<int>(mask.size(0)), 3);
  const std::int64_t* id = ids.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
    const view::Colour colour =
        *id < 0 ? view::quiet
                : view::viridis(static_cast<double>(*id) /
                                static_cast<double>(std::max<std::int64_t>(classes - 1, 1)));
    ++id;
    std::copy(colour.begin(), colour.end(), image.pixels.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return image;
}

data::Image draw_masks(const at::Tensor& inputs, const at::Tensor& targets,
                       const at::Tensor& output, const PictureText& words) {
  check_shapes(inputs, targets, output, 4);
  const int rows = static_cast<int>(std::min<std::int64_t>(inputs.size(0), 4));
  const std::int64_t classes = output.size(1);
  const data::Image size = view::fit(to_image(inputs[0]), 384, 320);
  const view::Font font;
  const int line = font.height() + 8;
  const int top = margin + line + gap + line;
  const int row_height = size.height + line + gap;
  const int wide = 3 * size.width + 2 * gap;
  view::Canvas canvas(2 * margin + std::max(wide, font.width(words.title)),
                      top + rows * row_height + margin - gap);
  canvas.write(font, words.title, margin, margin);
  const std::string heads[] = {"input", "true mask", "predicted mask"};
  for (int column = 0; column < 3; ++column)
    canvas.write(font, heads[column], margin + column * (size.width + gap), margin + line + gap,
                 view::quiet);
  for (int row = 0; row < rows; ++row) {
    const at::Tensor predicted = output[row].argmax(0);
    const data::Image cells[] = {to_image(inputs[row]), colour_mask(targets[row], classes),
                                 colour_mask(predicted, classes)};
    const int y = top + row * row_height;
    for (int column = 0; column < 3; ++column) {
      const int x = margin + column * (size.width + gap);
      canvas.draw(view::fit(cells[column], 384, 320), x, y);
      canvas.outline(x - 1, y - 1, size.width + 2, size.height + 2, view::quiet);
    }
    const nn::Tally dice = nn::dice_tally(output.narrow(0, row, 1), targets.narrow(0, row, 1));
    canvas.write(font, name_of(words, row), margin, y + size.height + 6, view::quiet);
    canvas.write(font, text("dice ", rounded_metric(dice.mean())), margin + 2 * (size.width + gap),
                 y + size.height + 6, view::ink);
  }
  return canvas.image();
}

data::Image draw_classes(const at::Tensor& inputs, const at::Tensor& targets,
                         const at::Tensor& output, const PictureText& words) {
  check_shapes(inputs, targets, output, 2);
  constexpr int columns = 8;
  const int count = static_cast<int>(std::min<std::int64_t>(inputs.size(0), 32));
  const int rows = (count + columns - 1) / columns;
  const data::Image size = view::fit(to_image(inputs[0]), 96, 96);
  const view::Font font;
  const int line = font.height() + 8;
  const int top = margin + line + gap + line;
  const int row_height = size.height + line + gap;
  const std::string legend = "below each: true, predicted";
  const int wide = columns * (size.width + gap) - gap;
  view::Canvas canvas(2 * margin + std::max(wide, font.width(words.title)),
                      top + rows * row_height + margin - gap);
  canvas.write(font, words.title, margin, margin);
  canvas.write(font, legend, margin, margin + line + gap, view::quiet);
  for (int i = 0; i < count; ++i) {
    const int x = margin + i % columns * (size.width + gap);
    const int y = top + i / columns * row_height;
    canvas.draw(view::fit(to_image(inputs[i]), 96, 96), x, y);
    const std::int64_t truth = targets[i].item<std::int64_t>();
    const std::int64_t guess = output[i].argmax(0).item<std::int64_t>();
    const std::string left = text(truth, " ");
    canvas.write(font, left, x, y + size.height + 6, view::ink);
    canvas.write(font, text(guess), x + font.width(left), y + size.height + 6,
                 guess == truth ? view::quiet : view::alarm);
    if (guess != truth) canvas.outline(x - 2, y - 2, size.width + 4, size.height + 4, view::alarm);
  }
  return canvas.image();
}

}  // namespace trestle::train
