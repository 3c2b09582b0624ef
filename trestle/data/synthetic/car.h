#pragma once

#include <vector>

#include "trestle/base/random.h"
#include "trestle/data/synthetic/render.h"

// The shape of a synthetic car. Internal to data/synthetic.
namespace trestle::data::render {

// A random car: saloon, hatchback, estate or van, with its build and colours.
struct Car {
  std::vector<Face> faces;  // in its own frame: x forward, y to its left, z up from the ground,
                            // origin at the middle
  double length = 0;        // metres
  double width = 0;
};

Car make_car(Random& random);

}  // namespace trestle::data::render
