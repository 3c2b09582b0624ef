#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"
#include "trestle/data/files/mnist_files.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/data/synthetic/synthetic_folder.h"

namespace trestle::data {
namespace {

struct Point {
  double x;
  double y;
};

using Stroke = std::vector<Point>;

// Points on an arc around (x, y), angles in turns, clockwise from the right (y points down).
void arc(Stroke& stroke, double x, double y, double rx, double ry, double from, double to) {
  const int steps = std::max(4, static_cast<int>(std::abs(to - from) * 24));
  for (int i = 0; i <= steps; ++i) {
    const double angle = 2 * std::numbers::pi * (from + (to - from) * i / steps);
    stroke.push_back({x + rx * std::cos(angle), y + ry * std::sin(angle)});
  }
}

// The strokes of a handwritten digit, in a box of x and y from -1 to 1. `random` chooses between
// common variants.
std::vector<Stroke> strokes_of(int digit, Random& random) {
  Stroke a, b;
  switch (digit) {
    case 0:
      arc(a, 0, 0, 0.62, 0.95, -0.27, 0.74);
      return {a};
    case 1:
      a = {{0, -0.95}, {0, 0.95}};
      if (random.uniform() < 0.4) a.insert(a.begin(), {-0.4, -0.55});
      if (random.uniform() < 0.2) b = {{-0.4, 0.95}, {0.4, 0.95}};
      return {a, b};
    case 2:
      arc(a, 0, -0.42, 0.58, 0.53, -0.48, 0.1);
      a.push_back({-0.6, 0.92});
      a.push_back({0.68, 0.9});
      return {a};
    case 3:
      arc(a, -0.05, -0.46, 0.52, 0.48, -0.42, 0.22);
      arc(b, -0.05, 0.46, 0.6, 0.5, -0.25, 0.42);
      a.insert(a.end(), b.begin(), b.end());
      return {a};
    case 4:
      a = {{-0.35, -0.9}, {-0.6, 0.15}, {0.65, 0.15}};
      b = {{0.35, -0.75}, {0.28, 0.95}};
      return {a, b};
    case 5:
      a = {{0.55, -0.9}, {-0.42, -0.9}, {-0.5, -0.12}};
      arc(a, -0.02, 0.36, 0.58, 0.56, -0.36, 0.4);
      return {a};
    case 6:
      a = {{0.4, -0.92}, {-0.1, -0.6}, {-0.45, -0.1}};
      arc(a, 0.02, 0.42, 0.54, 0.5, 0.5, -0.5);
      return {a};
    case 7:
      a = {{-0.6, -0.88}, {0.6, -0.88}, {-0.1, 0.95}};
      if (random.uniform() < 0.25) b = {{-0.25, 0.05}, {0.45, 0.05}};
      return {a, b};
    case 8:
      arc(a, 0, -0.46, 0.46, 0.46, 0.25, 1.25);
      arc(b, 0, 0.47, 0.56, 0.48, -0.25, 0.75);
      return {a, b};
    default:
      arc(a, 0.0, -0.4, 0.5, 0.5, 0.0, -1.0);
      a.push_back({0.5, -0.4});
      a.push_back({random.uniform(0.2, 0.45), 0.95});
      return {a};
  }
}

// Returns the square of the distance.
double distance_to(const Point& p, const Point& a, const Point& b) {
  const double dx = b.x - a.x;
  const double dy = b.y - a.y;
  const double length = dx * dx + dy * dy;
  const double along =
      length == 0 ? 0 : std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length, 0.0, 1.0);
  const double rest_x = p.x - a.x - along * dx;
  const double rest_y = p.y - a.y - along * dy;
  return rest_x * rest_x + rest_y * rest_y;
}

constexpr int side = 28;

// Moves the strokes from the unit box to pixels with a random bend, slant, rotation, size and
// position.
void place(std::vector<Stroke>& strokes, Random& random) {
  const double turn = random.uniform(-0.22, 0.22);
  const double slant = random.uniform(-0.15, 0.35);
  const double tall = random.uniform(8.0, 10.2);
  const double wide = tall * random.uniform(0.75, 1.1);
  const Point middle{13.5 + random.uniform(-1.5, 1.5), 13.5 + random.uniform(-1.5, 1.5)};
  const double bend_x = random.uniform(-0.1, 0.1);
  const double bend_y = random.uniform(-0.1, 0.1);
  const double phase = random.uniform(0, 6.28);
  for (Stroke& stroke : strokes) {
    for (Point& p : stroke) {
      const double x = p.x + bend_x * std::sin(2.5 * p.y + phase) + random.uniform(-0.025, 0.025);
      const double y = p.y + bend_y * std::sin(2.5 * p.x + phase) + random.uniform(-0.025, 0.025);
      const double u = (x - slant * y) * wide;
      const double v = y * tall;
      p = {middle.x + u * std::cos(turn) - v * std::sin(turn),
           middle.y + u * std::sin(turn) + v * std::cos(turn)};
    }
  }
}

void draw_digit(int digit, Random& random, std::uint8_t* pixels) {
  std::vector<Stroke> strokes = strokes_of(digit, random);
  place(strokes, random);
  const double half = random.uniform(0.7, 1.6);  // of the pen
  const double ink = random.uniform(0.8, 1.0);
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      double nearest = 1e4;
      for (const Stroke& stroke : strokes) {
        for (std::size_t i = 1; i < stroke.size(); ++i) {
          nearest = std::min(nearest, distance_to({x + 0.0, y + 0.0}, stroke[i - 1], stroke[i]));
        }
      }
      const double cover = std::clamp((half + 0.6 - std::sqrt(nearest)) / 1.2, 0.0, 1.0);
      const double grain = cover * random.uniform(0.88, 1.0) + random.uniform(0, 0.02);
      *pixels++ = static_cast<std::uint8_t>(std::min(255.0, 255 * ink * grain));
    }
  }
}

MnistArrays draw_part(std::int64_t count, std::uint64_t seed, const SynthesisProgress& progress,
                      std::int64_t before, std::int64_t all) {
  MnistArrays arrays{{count, side, side, {}}, {}};
  for (std::int64_t i = 0; i < count; ++i)
    arrays.labels.push_back(static_cast<std::uint8_t>(i % 10));
  Random order(keyed_seed(seed, -1, -1, -1));
  shuffle(arrays.labels, order);
  arrays.images.pixels.resize(static_cast<std::size_t>(count) * side * side);
  for (std::int64_t i = 0; i < count; ++i) {
    Random random(keyed_seed(seed, i, -1, -1));
    draw_digit(arrays.labels[static_cast<std::size_t>(i)], random,
               &arrays.images.pixels[i * side * side]);
    if (progress) progress(before + i + 1, all);
  }
  return arrays;
}

std::int64_t tests_of(std::int64_t count, const SynthesizeMnistOptions& options) {
  return options.test_count > 0 ? options.test_count : std::max<std::int64_t>(1, count / 6);
}

void write_mnist(const std::filesystem::path& folder, std::int64_t count,
                 const SynthesizeMnistOptions& options) {
  const std::int64_t test = tests_of(count, options);
  for (const MnistPart part : {MnistPart::Train, MnistPart::Test}) {
    const bool training = part == MnistPart::Train;
    const MnistArrays arrays =
        draw_part(training ? count : test, keyed_seed(options.seed, training ? 0 : 1, -1, -1),
                  options.progress, training ? 0 : count, count + test);
    const MnistFiles files = mnist_paths(folder, part);
    write_idx_images(files.images, arrays.images);
    write_idx_labels(files.labels, arrays.labels);
  }
}

}  // namespace

std::string describe_synthetic_mnist(std::int64_t count, const SynthesizeMnistOptions& options) {
  return text(count, " digits to train on, ", tests_of(count, options), " to test with, seed ",
              options.seed);
}

void synthesize_mnist(const std::filesystem::path& out, std::int64_t count,
                      const SynthesizeMnistOptions& options) {
  if (count < 1 || options.test_count < 0) {
    throw UsageError(text("cannot synthesize ", count, " digits to train on and ",
                          options.test_count, " to test with: at least 1 and 0"));
  }
  make_synthetic_folder(out, describe_synthetic_mnist(count, options),
                        [&](const auto& folder) { write_mnist(folder, count, options); });
}

}  // namespace trestle::data
