#include "trestle/train/picture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trestle/base/error.h"
#include "trestle/view/chart/canvas.h"

namespace trestle::train {
using view::Colour;
using view::ink;
using view::quiet;
using view::viridis;
namespace {

Colour pixel(const data::Image& image, int x, int y) {
  return {image.at(x, y, 0), image.at(x, y, 1), image.at(x, y, 2)};
}

TEST(Picture, DrawsMasksInVioletAndYellow) {
  const at::Tensor mask = torch::tensor({{0, 1}, {1, 0}});
  const data::Image image = colour_mask(mask, 2);
  EXPECT_EQ(pixel(image, 0, 0), viridis(0));
  EXPECT_EQ(pixel(image, 1, 0), viridis(1));
  EXPECT_EQ(viridis(0), (Colour{68, 1, 84}));
  EXPECT_EQ(viridis(1), (Colour{253, 231, 37}));
  EXPECT_EQ(viridis(0.5), (Colour{33, 144, 141}));
}

TEST(Picture, DrawsRowsOfInputTargetAndPrediction) {
  const at::Tensor inputs = torch::full({5, 3, 8, 12}, 0.5);
  const at::Tensor targets = torch::ones({5, 8, 12}, torch::kLong);
  at::Tensor output = torch::zeros({5, 2, 8, 12});
  output.select(1, 0).fill_(1);
  const data::Image image =
      draw_masks(inputs, targets, output, {.title = "a run", .names = {"first"}});
  EXPECT_EQ(image.channels, 3);
  // 12 x 8 is enlarged 32 times; the three columns are side by side.
  const int y = 150;
  EXPECT_EQ(pixel(image, 16 + 192, y), (Colour{128, 128, 128}));
  EXPECT_EQ(pixel(image, 16 + 396 + 192, y), viridis(1));
  EXPECT_EQ(pixel(image, 16 + 2 * 396 + 192, y), viridis(0));
  EXPECT_EQ(draw_masks(inputs.narrow(0, 0, 4), targets, output, {"a run", {"first"}}), image)
      << "four rows at most";
  EXPECT_THROW(draw_masks(inputs, targets[0], output, {}), UsageError);
}

TEST(Picture, MarksWrongClassesRed) {
  const at::Tensor inputs = torch::zeros({9, 1, 28, 28});
  const at::Tensor targets = torch::zeros({9}, torch::kLong);
  at::Tensor output = torch::zeros({9, 10});
  output.select(1, 0).fill_(1);
  const data::Image right = draw_classes(inputs, targets, output, {.title = "digits", .names = {}});
  output[8][3] = 2;
  const data::Image wrong = draw_classes(inputs, targets, output, {.title = "digits", .names = {}});
  auto reds = [](const data::Image& image) {
    int count = 0;
    for (int y = 0; y < image.height; ++y)
      for (int x = 0; x < image.width; ++x) count += pixel(image, x, y) == view::alarm;
    return count;
  };
  EXPECT_EQ(reds(right), 0);
  EXPECT_GT(reds(wrong), 100);
}

TEST(Canvas, ClipsDrawingOutside) {
  view::Canvas canvas(10, 10);
  canvas.fill(-5, -5, 100, 100, ink);
  canvas.draw(data::Image::blank(30, 30, 1), -10, 5);
  const view::Font font;
  canvas.write(font, "abc?%", 7, 7);
  canvas.write(font, "abc?%", -7, -7);
  EXPECT_EQ(pixel(canvas.image(), 0, 0), ink);
}

// The number of pixels that a text darkens.
int darkened(std::string_view words) {
  const view::Font font;
  view::Canvas canvas(200, 40);
  canvas.write(font, words, 5, 5);
  int count = 0;
  for (int y = 0; y < 40; ++y)
    for (int x = 0; x < 200; ++x) count += pixel(canvas.image(), x, y) != view::white;
  return count;
}

TEST(Font, DrawsLettersWithinTheirWidthAndHeight) {
  const view::Font font(20);
  for (const std::string_view words : {"i", "W", "Training, epoch 3", "gjpqy", "é µ ·"}) {
    int dots = 0;
    font.draw(words, [&](int x, int y, std::uint8_t cover) {
      ++dots;
      EXPECT_GT(cover, 0);
      EXPECT_GE(x, -2);
      EXPECT_LT(x, font.width(words) + 2);
      EXPECT_GE(y, 0);
      EXPECT_LT(y, font.height());
    });
    EXPECT_GT(dots, 10) << words;
  }
  EXPECT_EQ(font.width(""), 0);
  EXPECT_GT(font.width("W"), 2 * font.width("i"));
  EXPECT_GT(view::Font(40).height(), 2 * font.height() - 4);
}

TEST(Font, DistinguishesCapitalsLettersAndAccents) {
  EXPECT_NE(darkened("A"), darkened("a"));
  EXPECT_GT(darkened("é"), darkened("e"));
  EXPECT_EQ(darkened(" "), 0);
  EXPECT_GT(darkened("日"), 10) << "a box replaces missing glyphs";
}

TEST(Font, DrawsInvalidUtf8) {
  for (const std::string_view words : {"\xff\xfe", "a\xc3", "\xe2\x82", "\xf0\x9f\x98", "\x80z"})
    EXPECT_GT(darkened(words), 0) << words.size();
}

}  // namespace
}  // namespace trestle::train
