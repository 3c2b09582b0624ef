#include "trestle/data/synthetic/car.h"

#include <array>
#include <cstddef>
#include <numbers>
#include <utility>

namespace trestle::data::render {
namespace {

// Lengths in metres; x runs from -length / 2 (rear) to length / 2 (front).
struct Build {
  double length, width, height;
  double clearance;   // under the body
  double waist;       // height of the body's widest point
  double bonnet;      // height of the bonnet's front
  double belt;        // lower edge of the windows
  double boot;        // height of the rear end of the lower body
  double screen_low;  // x of the windscreen's foot
  double screen_top;  // x of the roof's front
  double rear_top;    // x of the roof's rear
  double rear_low;    // x of the rear window's foot
  double wheel;       // radius
  double front_axle, rear_axle;
};

struct Paint {
  Colour body, trim, glass, tyre, rim;
};

Build make_build(Random& random) {
  Build b{};
  b.width = random.uniform(1.68, 1.9);
  b.clearance = random.uniform(0.18, 0.26);
  const auto kind = random.below(4);  // saloon, hatchback, estate, van
  b.length = kind == 1 ? random.uniform(3.6, 4.1) : random.uniform(4.3, 4.9);
  b.height = kind == 3 ? random.uniform(1.65, 1.9) : random.uniform(1.38, 1.55);
  b.wheel = random.uniform(0.3, 0.36) * (kind == 3 ? 1.08 : 1.0);
  b.belt = b.height * random.uniform(0.6, 0.64);
  b.bonnet = b.belt * random.uniform(0.74, 0.84);
  b.waist = b.clearance + 0.45 * (b.belt - b.clearance);
  const double half = b.length / 2;
  b.screen_low = half - b.length * (kind == 3 ? 0.2 : random.uniform(0.25, 0.29));
  b.screen_top = b.screen_low - random.uniform(0.55, 0.8);
  const std::array<double, 4> rear_low = {b.length * 0.15, 0.06, 0.05, 0.05};
  const std::array<double, 4> rear_top = {b.length * 0.27, 0.45, 0.3, 0.18};
  b.rear_low = -half + rear_low[kind] + random.uniform(0, 0.08);
  b.rear_top = -half + rear_top[kind] + random.uniform(0, 0.12);
  b.boot = b.belt * (kind == 0 ? random.uniform(0.92, 0.97) : 0.98);
  b.front_axle = half - b.length * random.uniform(0.175, 0.2);
  b.rear_axle = -half + b.length * random.uniform(0.18, 0.21);
  return b;
}

Paint make_paint(Random& random) {
  constexpr std::array<Colour, 10> colours = {{{0.9, 0.9, 0.9},
                                               {0.68, 0.7, 0.72},
                                               {0.36, 0.37, 0.4},
                                               {0.1, 0.1, 0.12},
                                               {0.62, 0.08, 0.08},
                                               {0.1, 0.2, 0.5},
                                               {0.25, 0.45, 0.65},
                                               {0.12, 0.33, 0.22},
                                               {0.75, 0.6, 0.25},
                                               {0.45, 0.3, 0.2}}};
  Colour body = colours[random.below(colours.size())];
  for (double* part : {&body.x, &body.y, &body.z}) *part *= random.uniform(0.85, 1.1);
  const double rim = random.uniform(0.45, 0.75);
  return {body, {0.13, 0.13, 0.14}, {0.12, 0.16, 0.2}, {0.07, 0.07, 0.07}, {rim, rim, rim * 1.03}};
}

void quad(std::vector<Face>& faces, const Vec& a, const Vec& b, const Vec& c, const Vec& d,
          const Colour& colour, double gloss) {
  faces.push_back({{a, b, c, d}, colour, gloss});
}

Vec mirrored(const Vec& v) { return {v.x, -v.y, v.z}; }

// Adds a face on the left side and its mirror image on the right side.
void both_sides(std::vector<Face>& faces, const std::vector<Vec>& left, const Colour& colour,
                double gloss) {
  std::vector<Vec> right;
  for (const Vec& point : left) right.push_back(mirrored(point));
  faces.push_back({left, colour, gloss});
  faces.push_back({std::move(right), colour, gloss});
}

constexpr double paint_gloss = 0.35;

// One cross-section of the lower body.
struct Station {
  double x, top, narrow;  // narrow: factor on the body's width, 1 for full width
};

void add_lower_body(std::vector<Face>& faces, const Build& b, const Paint& paint) {
  const double half = b.length / 2;
  const std::array<Station, 8> stations = {{{-half, b.boot * 0.72, 0.86},
                                            {-half + 0.1, b.boot * 0.97, 0.95},
                                            {b.rear_low, b.boot, 1.0},
                                            {-0.1 * half, b.belt, 1.0},
                                            {b.screen_low, b.belt, 1.0},
                                            {half - 0.3, b.bonnet + 0.06, 0.97},
                                            {half - 0.08, b.bonnet - 0.03, 0.91},
                                            {half, b.bonnet * 0.8, 0.84}}};
  auto points = [&](const Station& s) {
    const double w = s.narrow * b.width / 2;
    const double waist = std::min(b.waist, s.top - 0.05);
    return std::array<Vec, 3>{
        {{s.x, 0.94 * w, b.clearance}, {s.x, w, waist}, {s.x, 0.93 * w, s.top}}};
  };
  for (std::size_t i = 0; i + 1 < stations.size(); ++i) {
    const auto p = points(stations[i]);
    const auto q = points(stations[i + 1]);
    both_sides(faces, {p[0], q[0], q[1], p[1]}, paint.body * 0.9, paint_gloss);
    both_sides(faces, {p[1], q[1], q[2], p[2]}, paint.body, paint_gloss);
    quad(faces, p[2], q[2], mirrored(q[2]), mirrored(p[2]), paint.body, paint_gloss);
    quad(faces, p[0], q[0], mirrored(q[0]), mirrored(p[0]), paint.trim, 0);
  }
  for (const std::size_t end : {std::size_t{0}, stations.size() - 1}) {
    const auto p = points(stations[end]);
    quad(faces, p[0], p[1], mirrored(p[1]), mirrored(p[0]), paint.body * 0.85, paint_gloss);
    quad(faces, p[1], p[2], mirrored(p[2]), mirrored(p[1]), paint.body, paint_gloss);
  }
}

// The point of the quad a b c d at s (a to b) and t (a to d), moved outwards by `lift`.
Vec inside(const std::array<Vec, 4>& quad, double s, double t, const Vec& lift) {
  const Vec low = quad[0] * (1 - s) + quad[1] * s;
  const Vec high = quad[3] * (1 - s) + quad[2] * s;
  return low * (1 - t) + high * t + lift;
}

std::vector<Vec> pane(const std::array<Vec, 4>& quad, double s0, double s1, double t0, double t1,
                      const Vec& lift) {
  return {inside(quad, s0, t0, lift), inside(quad, s1, t0, lift), inside(quad, s1, t1, lift),
          inside(quad, s0, t1, lift)};
}

void add_cabin(std::vector<Face>& faces, const Build& b, const Paint& paint) {
  const double low = 0.915 * b.width / 2;
  const double high = 0.74 * b.width / 2;
  const double foot = b.belt - 0.03;
  const double roof = b.height - 0.05;  // the roof's edge; its middle has the car's height
  const Vec fl{b.screen_low, low, foot}, ft{b.screen_top, high, roof};
  const Vec rl{b.rear_low, low, foot}, rt{b.rear_top, high, roof};
  both_sides(faces, {rl, fl, ft, rt}, paint.body, paint_gloss);
  const std::array<Vec, 4> side = {rl, fl, ft, rt};
  const Vec out{0, 0.012, 0.004};
  both_sides(faces, pane(side, 0.07, 0.3, 0.16, 0.86, out), paint.glass, 0.5);
  both_sides(faces, pane(side, 0.33, 0.6, 0.13, 0.88, out), paint.glass, 0.5);
  both_sides(faces, pane(side, 0.63, 0.93, 0.13, 0.88, out), paint.glass, 0.5);
  for (const bool front : {true, false}) {
    const Vec& foot_corner = front ? fl : rl;
    const Vec& top_corner = front ? ft : rt;
    const std::array<Vec, 4> screen = {foot_corner, mirrored(foot_corner), mirrored(top_corner),
                                       top_corner};
    quad(faces, screen[0], screen[1], screen[2], screen[3], paint.body, paint_gloss);
    faces.push_back({pane(screen, 0.06, 0.94, 0.1, 0.92, {front ? 0.012 : -0.012, 0, 0.008}),
                     paint.glass * 1.15, 0.55});
  }
  const double middle = (ft.x + rt.x) / 2;
  const Vec ridge_front{ft.x - 0.12, high * 0.5, b.height - 0.01};
  const Vec ridge_rear{rt.x + 0.12, high * 0.5, b.height - 0.01};
  const Vec top{middle, 0, b.height};
  both_sides(faces, {rt, ft, ridge_front, ridge_rear}, paint.body, paint_gloss);
  both_sides(faces, {ridge_rear, ridge_front, {ridge_front.x, 0, top.z}, {ridge_rear.x, 0, top.z}},
             paint.body, paint_gloss);
  quad(faces, ft, ridge_front, mirrored(ridge_front), mirrored(ft), paint.body, paint_gloss);
  quad(faces, rt, ridge_rear, mirrored(ridge_rear), mirrored(rt), paint.body, paint_gloss);
}

// A disc at the side of the car, at distance `y` from its middle.
std::vector<Vec> disc(double x, double y, double z, double radius, double from = 0, double to = 1) {
  constexpr int corners = 28;
  std::vector<Vec> points;
  for (int i = 0; i <= corners; ++i) {
    const double angle = 2 * std::numbers::pi * (from + (to - from) * i / corners);
    points.push_back({x + radius * std::cos(angle), y, z + radius * std::sin(angle)});
  }
  return points;
}

void add_wheel(std::vector<Face>& faces, const Build& b, const Paint& paint, double x) {
  const double outer = b.width / 2 + 0.015;
  both_sides(faces, disc(x, outer - 0.008, b.wheel, b.wheel * 1.14, 0, 0.5), paint.trim * 0.5, 0);
  both_sides(faces, disc(x, outer, b.wheel, b.wheel), paint.tyre, 0);
  both_sides(faces, disc(x, outer + 0.004, b.wheel, b.wheel * 0.66), paint.rim, 0.2);
  constexpr int spokes = 5;
  for (int i = 0; i < spokes; ++i) {  // the dark gaps between the spokes
    const double from = static_cast<double>(i) / spokes;
    std::vector<Vec> gap = disc(x, outer + 0.008, b.wheel, b.wheel * 0.58, from, from + 0.11);
    gap.push_back({x + b.wheel * 0.16 * std::cos(2 * std::numbers::pi * (from + 0.055)),
                   outer + 0.008,
                   b.wheel + b.wheel * 0.16 * std::sin(2 * std::numbers::pi * (from + 0.055))});
    both_sides(faces, gap, paint.tyre * 1.6, 0);
  }
  const std::vector<Vec> rim = disc(x, outer, b.wheel, b.wheel);
  for (std::size_t i = 0; i + 1 < rim.size(); ++i) {  // the tread
    const Vec in{0, -0.22, 0};
    both_sides(faces, {rim[i], rim[i + 1], rim[i + 1] + in, rim[i] + in}, paint.tyre, 0);
  }
}

void add_lamps_and_bumpers(std::vector<Face>& faces, const Build& b, const Paint& paint) {
  const double half = b.length / 2;
  const double w = b.width / 2;
  // Lamps are on the flat ends of the lower body.
  const double lamp = b.bonnet * 0.8;
  const double tail = b.boot * 0.72;
  auto lamps = [&](double x, double inner, double low, double high, const Colour& colour) {
    both_sides(faces,
               {{x, inner * w, low}, {x, 0.79 * w, low}, {x, 0.76 * w, high}, {x, inner * w, high}},
               colour, 0.3);
  };
  lamps(half + 0.014, 0.42, lamp - 0.15, lamp - 0.01, {0.92, 0.92, 0.86});
  lamps(-half - 0.014, 0.5, tail - 0.2, tail - 0.02, {0.62, 0.05, 0.05});
  quad(faces, {half + 0.012, 0.38 * w, lamp - 0.15}, {half + 0.012, -0.38 * w, lamp - 0.15},
       {half + 0.012, -0.38 * w, lamp - 0.02}, {half + 0.012, 0.38 * w, lamp - 0.02}, paint.trim,
       0.1);
  for (const double x : {half + 0.013, -half - 0.013}) {  // bumper and number plate
    const double low = b.clearance;
    quad(faces, {x, 0.72 * w, low}, {x, -0.72 * w, low}, {x, -0.72 * w, low + 0.12},
         {x, 0.72 * w, low + 0.12}, paint.trim, 0);
    const double out = x > 0 ? x + 0.004 : x - 0.004;
    quad(faces, {out, 0.26, low + 0.14}, {out, -0.26, low + 0.14}, {out, -0.26, low + 0.25},
         {out, 0.26, low + 0.25}, {0.85, 0.85, 0.8}, 0);
  }
}

void add_gaps_and_mirrors(std::vector<Face>& faces, const Build& b, const Paint& paint) {
  const double w = b.width / 2;
  // Sill and door gaps.
  const double sill = b.clearance + 0.07;
  both_sides(faces,
             {{b.rear_axle, 0.955 * w, b.clearance},
              {b.front_axle, 0.955 * w, b.clearance},
              {b.front_axle, 0.965 * w, sill},
              {b.rear_axle, 0.965 * w, sill}},
             paint.trim, 0);
  for (const double x : {b.screen_low - 0.25, (b.screen_low + b.rear_low) / 2, b.rear_low + 0.45}) {
    if (x - b.rear_axle < b.wheel && x > b.rear_axle - b.wheel) continue;
    both_sides(faces,
               {{x, w * 1.004, sill + 0.05},
                {x + 0.018, w * 1.004, sill + 0.05},
                {x + 0.018, w * 1.004, b.waist},
                {x, w * 1.004, b.waist}},
               paint.body * 0.45, 0);
    both_sides(faces,
               {{x, w * 1.004, b.waist},
                {x + 0.018, w * 1.004, b.waist},
                {x + 0.018, w * 0.945, b.belt},
                {x, w * 0.945, b.belt}},
               paint.body * 0.45, 0);
  }
  const double mx = b.screen_low - 0.22, mz = b.belt + 0.02;  // mirrors
  both_sides(
      faces,
      {{mx, w * 0.9, mz}, {mx, w + 0.17, mz}, {mx, w + 0.17, mz + 0.14}, {mx, w * 0.9, mz + 0.12}},
      paint.body * 0.9, paint_gloss);
  both_sides(faces,
             {{mx, w + 0.17, mz},
              {mx + 0.12, w + 0.13, mz},
              {mx + 0.12, w + 0.13, mz + 0.12},
              {mx, w + 0.17, mz + 0.14}},
             paint.body * 0.9, paint_gloss);
}

}  // namespace

Car make_car(Random& random) {
  const Build build = make_build(random);
  const Paint paint = make_paint(random);
  Car car{{}, build.length, build.width};
  add_lower_body(car.faces, build, paint);
  add_cabin(car.faces, build, paint);
  add_wheel(car.faces, build, paint, build.front_axle);
  add_wheel(car.faces, build, paint, build.rear_axle);
  add_lamps_and_bumpers(car.faces, build, paint);
  add_gaps_and_mirrors(car.faces, build, paint);
  return car;
}

}  // namespace trestle::data::render
