#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"
#include "trestle/data/files/nifti.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/data/synthetic/synthetic_folder.h"

namespace trestle::data {
namespace {

using Place = std::array<double, 3>;  // millimetres along slices, rows, columns

// A scan that is drawn shape by shape.
class Phantom {
 public:
  explicit Phantom(const SynthesizeVolumesOptions& options)
      : sides_{options.depth, options.height, options.width},
        spacing_{options.slice_spacing, 1, 1},
        cover_(static_cast<std::size_t>(sides_[0] * sides_[1] * sides_[2])),
        labels_(cover_.size()) {}

  double length(std::size_t d) const { return static_cast<double>(sides_[d]) * spacing_[d]; }

  // A ball with a border of half a millimetre, as bright as `light` (0 to 1).
  void ball(const Place& middle, double radius, double light, float label) {
    std::array<std::int64_t, 3> from, to;
    for (std::size_t d = 0; d < 3; ++d) {
      from[d] = index((middle[d] - radius - 1) / spacing_[d], d);
      to[d] = index((middle[d] + radius + 1) / spacing_[d], d);
    }
    for (std::int64_t z = from[0]; z <= to[0]; ++z)
      for (std::int64_t y = from[1]; y <= to[1]; ++y)
        for (std::int64_t x = from[2]; x <= to[2]; ++x) {
          const double dz = static_cast<double>(z) * spacing_[0] - middle[0];
          const double dy = static_cast<double>(y) * spacing_[1] - middle[1];
          const double dx = static_cast<double>(x) * spacing_[2] - middle[2];
          const double inside = radius - std::sqrt(dz * dz + dy * dy + dx * dx);
          const auto at = static_cast<std::size_t>((z * sides_[1] + y) * sides_[2] + x);
          const double covered = light * std::clamp(inside + 0.5, 0.0, 1.0);
          cover_[at] = std::max(cover_[at], static_cast<float>(covered));
          if (inside >= 0) labels_[at] = label;
        }
  }

  const Sides& sides() const { return sides_; }
  const std::vector<float>& cover() const { return cover_; }
  const std::vector<float>& labels() const { return labels_; }

 private:
  std::int64_t index(double place, std::size_t d) const {
    return std::clamp<std::int64_t>(std::llround(place), 0, sides_[d] - 1);
  }

  Sides sides_;
  std::array<double, 3> spacing_;
  std::vector<float> cover_, labels_;
};

constexpr float tube_label = 1, blob_label = 2;

// Along a curve of Bezier between two opposite faces, with two points that bend it.
void draw_tube(Phantom& phantom, Random& random) {
  const std::size_t along = random.below(3);
  std::array<Place, 4> points;
  for (std::size_t p = 0; p < points.size(); ++p)
    for (std::size_t d = 0; d < 3; ++d)
      points[p][d] = d == along ? phantom.length(d) * static_cast<double>(p) / 3
                                : phantom.length(d) * random.uniform(0.12, 0.88);
  const double radius = random.uniform(1.8, 3.2);
  const double steps = 2 * (phantom.length(0) + phantom.length(1) + phantom.length(2));
  for (double step = 0; step <= steps; ++step) {
    const double t = step / steps, u = 1 - t;
    Place at;
    for (std::size_t d = 0; d < 3; ++d)
      at[d] = u * u * u * points[0][d] + 3 * u * u * t * points[1][d] +
              3 * u * t * t * points[2][d] + t * t * t * points[3][d];
    phantom.ball(at, radius, 1, tube_label);
  }
}

void draw_blob(Phantom& phantom, Random& random) {
  const double shortest = std::min({phantom.length(0), phantom.length(1), phantom.length(2)});
  const double radius = shortest * random.uniform(0.08, 0.15);
  Place middle;
  for (std::size_t d = 0; d < 3; ++d)
    middle[d] = random.uniform(radius, phantom.length(d) - radius);
  phantom.ball(middle, radius, 0.55, blob_label);
}

// Numbers near those of a scanner: tissue about 100, tubes about 300, noise of 20.
std::vector<float> brightness(const Phantom& phantom, Random& random) {
  const double light = random.uniform(80, 120), contrast = random.uniform(170, 230);
  std::array<double, 3> slope;
  for (double& side : slope) side = random.uniform(-30, 30);
  const Sides& sides = phantom.sides();
  std::vector<float> values;
  values.reserve(phantom.cover().size());
  for (std::int64_t z = 0; z < sides[0]; ++z)
    for (std::int64_t y = 0; y < sides[1]; ++y)
      for (std::int64_t x = 0; x < sides[2]; ++x) {
        const std::array<std::int64_t, 3> at = {z, y, x};
        double value = light + contrast * static_cast<double>(phantom.cover()[values.size()]);
        for (std::size_t d = 0; d < 3; ++d)
          value += slope[d] * (static_cast<double>(at[d]) / static_cast<double>(sides[d]) - 0.5);
        // The sum of four uniform numbers is nearly normal.
        double noise = 0;
        for (int i = 0; i < 4; ++i) noise += random.uniform(-1, 1);
        values.push_back(static_cast<float>(std::round(value + 17 * noise)));
      }
  return values;
}

// Each scan lies at its own place, a little turned around the scanner's axis.
VolumeSpace place_in_room(const SynthesizeVolumesOptions& options, Random& random) {
  VolumeSpace space;
  space.pixdim = {1, 1, 1, options.slice_spacing, 1, 1, 1, 1};
  const double turn = random.uniform(-0.2, 0.2);
  const double c = std::cos(turn), s = std::sin(turn);
  space.qform_code = space.sform_code = 1;
  space.qform = {0,
                 0,
                 std::sin(turn / 2),
                 -std::round(random.uniform(20, 40)),
                 -std::round(random.uniform(20, 40)),
                 std::round(random.uniform(-100, 100))};
  space.srow = {c,
                -s,
                0,
                space.qform[3],
                s,
                c,
                0,
                space.qform[4],
                0,
                0,
                options.slice_spacing,
                space.qform[5]};
  return space;
}

void write_scan(const std::filesystem::path& folder, std::int64_t number,
                const SynthesizeVolumesOptions& options) {
  Random random(keyed_seed(options.seed, number, -1, -1));
  Phantom phantom(options);
  for (std::uint64_t left = 3 + random.below(4); left > 0; --left) draw_blob(phantom, random);
  for (std::uint64_t left = 2 + random.below(2); left > 0; --left) draw_tube(phantom, random);
  Volume volume{{.channels = 1, .sides = phantom.sides(), .space = place_in_room(options, random)}};
  volume.values = brightness(phantom, random);
  const std::string digits = std::to_string(1000 + number % 1000).substr(1);
  const std::string name =
      text("scan_", number < 1000 ? digits : std::to_string(number), ".nii.gz");
  write_nifti(folder / "volumes" / name, volume, VoxelType::Int16);
  volume.values = phantom.labels();
  write_nifti(folder / "labels" / name, volume, VoxelType::UInt8);
}

}  // namespace

std::string describe_synthetic_volumes(std::int64_t count,
                                       const SynthesizeVolumesOptions& options) {
  return text(count, " volumes, ", options.depth, " x ", options.height, " x ", options.width,
              " voxels, seed ", options.seed);
}

void synthesize_volumes(const std::filesystem::path& out, std::int64_t count,
                        const SynthesizeVolumesOptions& options) {
  constexpr int most = 2048;
  const bool good = count >= 1 && options.depth >= 8 && options.height >= 16 &&
                    options.width >= 16 && options.depth <= most && options.height <= most &&
                    options.width <= most && options.slice_spacing > 0;
  if (!good)
    throw UsageError(text("cannot draw ", count, " volumes of ", options.depth, " x ",
                          options.height, " x ", options.width,
                          " voxels: at least 1 volume of 8 x 16 x 16, at most ", most,
                          " along a side"));
  make_synthetic_folder(out, describe_synthetic_volumes(count, options), [&](const auto& folder) {
    std::filesystem::create_directories(folder / "volumes");
    std::filesystem::create_directories(folder / "labels");
    for (std::int64_t number = 0; number < count; ++number) {
      write_scan(folder, number, options);
      if (options.progress) options.progress(number + 1, count);
    }
  });
}

}  // namespace trestle::data
