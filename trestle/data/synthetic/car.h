#pragma once

#include <vector>

#include "trestle/base/random.h"
#include "trestle/data/synthetic/render.h"

// The shape of a synthetic car. Not installed.
namespace trestle::data::render {

// A car drawn at random: saloon, hatchback, estate or van; its build and colours.
struct Car {
  std::vector<Face> faces;  // in its own frame: x forward, y to its left, z up from the ground,
                            // middle at x = y = 0
  double length = 0;        // metres
  double width = 0;
};

Car make_car(Random& random);

}  // namespace trestle::data::render
