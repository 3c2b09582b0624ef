#include "trestle/data/files/resize.h"

#include <algorithm>
#include <cmath>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

// Fraction bits of a fixed-point weight: an 8-bit sample, a sign and one bit of overshoot remain.
constexpr int bits = 32 - 8 - 2;

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// The old samples that contribute to one new sample.
struct Window {
  int first = 0;            // first old sample
  int count = 0;            // of old samples
  std::size_t weights = 0;  // index of its first weight
};

struct Kernel {
  std::vector<Window> windows;
  std::vector<int> weights;
};

// The order of these operations decides the last bit of the weights: change nothing without the
// golden test.
Kernel make_kernel(int from, int to) {
  const double scale = static_cast<double>(from) / to;
  const double stretch = std::max(scale, 1.0);
  const double support = 2.0 * stretch;
  const double inverse = 1.0 / stretch;
  Kernel kernel;
  kernel.windows.reserve(static_cast<std::size_t>(to));
  std::vector<double> line;
  for (int i = 0; i < to; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + support + 0.5), from);
    line.clear();
    double sum = 0;
    for (int j = 0; j < end - first; ++j) {
      line.push_back(bicubic((j + first - centre + 0.5) * inverse));
      sum += line.back();
    }
    kernel.windows.push_back({first, end - first, kernel.weights.size()});
    for (double weight : line) {
      if (sum != 0) weight /= sum;
      const double scaled = weight * (1 << bits);
      kernel.weights.push_back(static_cast<int>(weight < 0 ? scaled - 0.5 : scaled + 0.5));
    }
  }
  return kernel;
}

constexpr int half = 1 << (bits - 1);

std::uint8_t to_sample(int fixed) {
  return static_cast<std::uint8_t>(std::clamp(fixed >> bits, 0, 255));
}

// The number of channels is a template parameter, so that the compiler keeps the sums in registers.
template <int channels>
void resize_row(const Kernel& kernel, const std::uint8_t* row, std::uint8_t* to) {
  for (const Window& window : kernel.windows) {
    const int* weights = &kernel.weights[window.weights];
    const std::uint8_t* from = row + static_cast<std::ptrdiff_t>(window.first) * channels;
    int sums[channels];
    std::fill_n(sums, channels, half);
    for (int j = 0; j < window.count; ++j, from += channels)
      for (int c = 0; c < channels; ++c) sums[c] += from[c] * weights[j];
    for (int c = 0; c < channels; ++c) *to++ = to_sample(sums[c]);
  }
}

Image resize_rows(const Image& image, int width) {
  const Kernel kernel = make_kernel(image.width, width);
  Image out = Image::blank(width, image.height, image.channels);
  const auto resize = image.channels == 3 ? resize_row<3> : resize_row<1>;
  for (int y = 0; y < image.height; ++y) {
    const std::size_t line = static_cast<std::size_t>(y) * image.channels;
    resize(kernel, &image.pixels[line * image.width], &out.pixels[line * width]);
  }
  return out;
}

// Works row by row of old samples, so that the inner loop runs along memory.
Image resize_columns(const Image& image, int height) {
  const Kernel kernel = make_kernel(image.height, height);
  const std::size_t row_samples = static_cast<std::size_t>(image.width) * image.channels;
  Image out = Image::blank(image.width, height, image.channels);
  std::vector<int> sums(row_samples);
  for (int y = 0; y < height; ++y) {
    const Window& window = kernel.windows[static_cast<std::size_t>(y)];
    std::ranges::fill(sums, half);
    for (int j = 0; j < window.count; ++j) {
      const int weight = kernel.weights[window.weights + j];
      const std::uint8_t* from = &image.pixels[(window.first + j) * row_samples];
      for (std::size_t i = 0; i < row_samples; ++i) sums[i] += from[i] * weight;
    }
    std::ranges::transform(sums, &out.pixels[y * row_samples], to_sample);
  }
  return out;
}

void check(const Image& image, int width, int height) {
  if (width <= 0 || height <= 0 || image.pixels.empty()) {
    throw UsageError(text("cannot resize an image of ", image.width, " x ", image.height,
                          " pixels to ", width, " x ", height));
  }
}

// The old position of each new sample. Steps are summed, as in Pillow, and not multiplied: the last
// bit differs.
std::vector<int> nearest_positions(int from, int to) {
  std::vector<int> positions(static_cast<std::size_t>(to));
  const double step = static_cast<double>(from) / to;
  double position = step * 0.5;
  for (int& p : positions) {
    p = std::min(static_cast<int>(position), from - 1);
    position += step;
  }
  return positions;
}

}  // namespace

Image resize_bicubic(const Image& image, int width, int height) {
  check(image, width, height);
  if (image.channels != 1 && image.channels != 3) {
    throw UsageError(
        text("cannot resize ", image.channels, " channels bicubically: 1 or 3 are possible"));
  }
  if (width == image.width) return height == image.height ? image : resize_columns(image, height);
  const Image rows = resize_rows(image, width);
  return height == image.height ? rows : resize_columns(rows, height);
}

Image resize_nearest(const Image& image, int width, int height) {
  check(image, width, height);
  const std::vector<int> xs = nearest_positions(image.width, width);
  const std::vector<int> ys = nearest_positions(image.height, height);
  Image out = Image::blank(width, height, image.channels);
  std::uint8_t* to = out.pixels.data();
  for (const int y : ys) {
    const std::uint8_t* row =
        &image.pixels[static_cast<std::size_t>(y) * image.width * image.channels];
    if (image.channels == 1) {  // masks: no loop over channels in the innermost loop
      for (const int x : xs) *to++ = row[x];
    } else {
      for (const int x : xs)
        to = std::copy_n(row + static_cast<std::ptrdiff_t>(x) * image.channels, image.channels, to);
    }
  }
  return out;
}

}  // namespace trestle::data
