#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/recipe/recipe.h"

// What a sweep measures: every recipe at every point of a grid of its fields.
namespace trestle::train {

// One field and the values that it takes.
struct SweepAxis {
  std::string key;                  // "pipeline.split_size"
  std::vector<std::string> values;  // as the recipe writes them: "20", "[13, 9]", "gpipe"
  bool is_number = false;
};

// "pipeline.split_size=1,2,4", or the key alone where only one section has it. Where a value has
// commas itself, values are parted by semicolons: "balance=13,9;11,11". Throws UsageError for a
// field that no recipe has, with the nearest, for values that it does not take, for none, and for
// one that stands twice.
SweepAxis parse_axis(std::string_view words);

// "batch=16": the recipe with that one field changed; the value may have commas. Returns the
// field's whole name. Throws as above.
std::string set_field(recipe::Recipe& recipe, std::string_view words);

struct SweepPoint {
  recipe::Recipe recipe;            // with the point's values
  std::vector<std::string> values;  // one for each axis
};

// Recipes one after the other, the last axis fastest. Throws UsageError for a field that two axes
// name, for two recipes of one name, for more than 10,000 points, and, with the point, for recipes
// that cannot be.
std::vector<SweepPoint> sweep_points(const std::vector<recipe::Recipe>& recipes,
                                     const std::vector<SweepAxis>& axes);

// "resnet50 · pipeline.split_size = 20": what tells a point from the others of its sweep. The
// recipe's name stands there where there are several recipes, or no axis.
std::string name_of(const SweepPoint& point, const std::vector<SweepAxis>& axes, bool with_recipe);

}  // namespace trestle::train
