#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/synthetic/car.h"
#include "trestle/data/synthetic/render.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/data/synthetic/synthetic_folder.h"

namespace trestle::data {
namespace {

using render::Colour;
using render::Vec;

constexpr int views = 16;  // of each car, one for each sixteenth of a turn

// The position of one car and the look of the room around it; the same in all its views.
struct Studio {
  render::Camera camera;
  Vec place;  // of the car's middle on the turntable
  Colour floor, wall;
  double turntable = 3.2;             // radius, metres
  std::array<double, 6> panels = {};  // brightness of the lamps' reflections on the wall
};

struct View {
  double turn;  // of the turntable, radians
  render::Light light;
  double exposure;
  double noise;  // of the camera, grey levels
};

Studio make_studio(Random& random, int width, int height) {
  Studio studio;
  studio.camera.distance = random.uniform(8.5, 10.5);
  studio.camera.height = random.uniform(1.2, 2.1);
  studio.camera.aim = 0.72;
  const double side = std::min(static_cast<double>(width), height * 1.5);
  studio.camera.focal = side * studio.camera.distance / random.uniform(5.3, 6.4);
  studio.camera.centre_x = width / 2.0;
  studio.camera.centre_y = height * random.uniform(0.5, 0.58);
  studio.place = {random.uniform(-0.25, 0.25), random.uniform(-0.25, 0.25), 0};
  const double grey = random.uniform(0.55, 0.82);
  studio.floor = {grey * random.uniform(0.97, 1.03), grey, grey * random.uniform(0.97, 1.05)};
  studio.wall = studio.floor * random.uniform(0.85, 1.15);
  for (double& panel : studio.panels) panel = random.uniform(-0.1, 0.12);
  return studio;
}

View make_view(Random& random, int view) {
  View out{};
  out.turn = 2 * std::numbers::pi * view / views + random.uniform(-0.04, 0.04);
  out.light.towards = {random.uniform(-0.8, 0.8), random.uniform(-0.9, -0.4),
                       random.uniform(0.6, 1.0)};
  out.light.ambient = random.uniform(0.45, 0.6);
  out.exposure = random.uniform(0.88, 1.1);
  out.noise = random.uniform(2, 6);
  return out;
}

double smooth(double from, double to, double x) {
  const double t = std::clamp((x - from) / (to - from), 0.0, 1.0);
  return t * t * (3 - 2 * t);
}

// The share of light that the car above takes from a point of the ground; `p` in the car's frame.
double shadow(const Vec& p, const render::Car& car) {
  const double dx = std::abs(p.x) - car.length / 2 + 0.25;
  const double dy = std::abs(p.y) - car.width / 2 + 0.2;
  const double outside =
      std::hypot(std::max(dx, 0.0), std::max(dy, 0.0)) + std::min(std::max(dx, dy), 0.0);
  return 0.72 * (1 - smooth(-0.25, 0.55, outside));
}

Vec turned(const Vec& p, double angle) {
  const double c = std::cos(angle);
  const double s = std::sin(angle);
  return {c * p.x - s * p.y, s * p.x + c * p.y, p.z};
}

// The colour of the empty room along one ray from the camera.
Colour room(const Studio& studio, const Vec& ray, const render::Car& car, double turn) {
  // Metres behind the turntable's middle, where the floor curves up.
  constexpr double wall_distance = 7;
  const Vec from = studio.camera.position();
  const double down = ray.z < -1e-6 ? -from.z / ray.z : 1e9;
  const Vec ground = from + ray * std::min(down, 1e3);
  const double to_wall = (wall_distance - from.y) / ray.y;
  const Vec on_wall = from + ray * to_wall;
  const double place = std::clamp((on_wall.x + 9) / 3, 0.0, 4.999);
  const auto panel = static_cast<std::size_t>(place);
  const double lamp = studio.panels[panel] + (studio.panels[panel + 1] - studio.panels[panel]) *
                                                 smooth(0.35, 0.65, place - panel);
  const Colour wall = studio.wall * (1 + lamp * smooth(0, 1.5, on_wall.z) - 0.03 * on_wall.z);
  if (ground.y > wall_distance) return wall;
  const double radius = std::hypot(ground.x, ground.y);
  const double rim = std::exp(-std::pow((radius - studio.turntable) / 0.05, 2));
  const double disc = radius < studio.turntable ? 0.96 : 1.0;
  const Colour floor = studio.floor * (disc * (1 - 0.25 * rim));
  const double lit = 1 - shadow(turned(ground - studio.place, -turn), car);
  return floor * (lit * (1 - smooth(3.5, wall_distance, ground.y))) +
         wall * smooth(3.5, wall_distance, ground.y);
}

struct Picture {
  Image image;
  Image mask;
};

Picture draw(const render::Car& car, const Studio& studio, const View& view, int width, int height,
             Random& random) {
  std::vector<render::Face> faces = car.faces;
  for (render::Face& face : faces) {
    for (Vec& point : face.points) point = turned(point, view.turn) + studio.place;
  }
  constexpr int samples = 2;
  const render::Rendering layer =
      render::draw(faces, studio.camera, view.light, width, height, samples);
  const auto [right, up, forward] = studio.camera.axes();
  Picture picture{Image::blank(width, height, 3), Image::blank(width, height, 1)};
  std::size_t at = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x, ++at) {
      Colour colour = layer.colour[at];
      const double cover = layer.cover[at];
      if (cover < 1) {
        const Vec ray = forward +
                        right * ((x + 0.5 - studio.camera.centre_x) / studio.camera.focal) +
                        up * ((studio.camera.centre_y - y - 0.5) / studio.camera.focal);
        colour = colour + room(studio, ray, car, view.turn) * (1 - cover);
      }
      picture.mask.pixels[at] = cover >= 0.5;
      // One draw for three channels: 16 bits for each.
      std::uint64_t bits = random.next();
      std::uint8_t* to = &picture.image.pixels[at * 3];
      for (const double part : {colour.x, colour.y, colour.z}) {
        const double noise = view.noise * (static_cast<double>(bits & 0xffff) / 32768 - 1);
        bits >>= 16;
        *to++ =
            static_cast<std::uint8_t>(std::clamp(255 * view.exposure * part + noise, 0.0, 255.0));
      }
    }
  }
  return picture;
}

std::string car_id(std::uint64_t seed, std::int64_t car) {
  char id[13];
  std::snprintf(id, sizeof id, "%012llx",
                static_cast<unsigned long long>(keyed_seed(seed, car, -1, 1) & 0xffffffffffffULL));
  return id;
}

void write_carvana(const std::filesystem::path& folder, std::int64_t count,
                   const SynthesizeCarvanaOptions& options) {
  std::filesystem::create_directory(folder / "train_hq");
  std::filesystem::create_directory(folder / "train_masks");
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t number = i / views;
    const int view_number = static_cast<int>(i % views);
    Random for_car(keyed_seed(options.seed, number, -1, -1));
    const render::Car car = render::make_car(for_car);
    const Studio studio = make_studio(for_car, options.width, options.height);
    Random for_view(keyed_seed(options.seed, number, view_number, -1));
    const View view = make_view(for_view, view_number);
    const Picture picture = draw(car, studio, view, options.width, options.height, for_view);
    char suffix[8];
    std::snprintf(suffix, sizeof suffix, "_%02d", view_number + 1);
    const std::string name = car_id(options.seed, number) + suffix;
    write_jpeg(folder / "train_hq" / (name + ".jpg"), picture.image, 92);
    write_gif_mask(folder / "train_masks" / (name + "_mask.gif"), picture.mask);
    if (options.progress) options.progress(i + 1, count);
  }
}

}  // namespace

std::string describe_synthetic_carvana(std::int64_t count,
                                       const SynthesizeCarvanaOptions& options) {
  return text(count, " images of cars, ", options.width, " x ", options.height, " pixels, seed ",
              options.seed);
}

void synthesize_carvana(const std::filesystem::path& out, std::int64_t count,
                        const SynthesizeCarvanaOptions& options) {
  constexpr int min_side = 16;
  if (count < 1) throw UsageError(text("cannot synthesize ", count, " pictures: at least 1"));
  if (options.width < min_side || options.height < min_side || options.width > 16'384 ||
      options.height > 16'384) {
    throw UsageError(text("cannot synthesize pictures of ", options.width, " x ", options.height,
                          ": a side has ", min_side, " to 16384 pixels"));
  }
  make_synthetic_folder(out, describe_synthetic_carvana(count, options),
                        [&](const auto& folder) { write_carvana(folder, count, options); });
}

}  // namespace trestle::data
