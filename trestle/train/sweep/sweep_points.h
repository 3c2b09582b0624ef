#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/recipe/recipe.h"

// The points of a sweep: every recipe at every point of a grid of its fields.
namespace trestle::train {

// One field and its values.
struct SweepAxis {
  std::string key;                  // "pipeline.split_size"
  std::vector<std::string> values;  // as in a recipe: "20", "[13, 9]", "gpipe"
  bool is_number = false;
};

// Parses "pipeline.split_size=1,2,4", or the key alone where one section has it. Values with commas
// are separated by semicolons: "balance=13,9;11,11". Throws UsageError for an unknown field, with
// the nearest one, for values that the field does not take, for no values, and for a repeated one.
SweepAxis parse_axis(std::string_view words);

// Parses "batch=16", the form of --set, into the full name of the field and its value, which may
// have commas. Throws as above, but does not check the value.
std::pair<std::string, std::string> parse_setting(std::string_view words);

// Parses "batch=16" and changes that field of the recipe; the value may have commas. Returns the
// full name of the field. Throws as above.
std::string set_field(recipe::Recipe& recipe, std::string_view words);

struct SweepPoint {
  recipe::Recipe recipe;            // with the point's values
  std::vector<std::string> values;  // one for each axis
};

// All points, recipe by recipe, with the last axis varying fastest. Throws UsageError for a field
// that two axes name, for two recipes of one name, for more than 10,000 points, and, with the
// point, for invalid recipes.
std::vector<SweepPoint> sweep_points(const std::vector<recipe::Recipe>& recipes,
                                     const std::vector<SweepAxis>& axes);

enum class RecipeName { Hide, Show };
// "resnet50 · pipeline.split_size = 20": the name of a point, unique in its sweep. It begins with
// the recipe where there are several recipes, or no axis.
std::string name_of(const SweepPoint& point, const std::vector<SweepAxis>& axes, RecipeName recipe);

}  // namespace trestle::train
