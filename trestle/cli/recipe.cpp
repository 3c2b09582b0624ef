#include "trestle/recipe/recipe.h"

#include <iostream>
#include <memory>

#include "trestle/cli/json.h"
#include "trestle/cli/mesh_flags.h"
#include "trestle/cli/verbs.h"
#include "trestle/recipe/recipe_fields.h"

namespace trestle::cli {

namespace {

struct RecipeArguments {
  std::string recipe;
  std::string mesh;
  FieldChanges changes;
  bool json = false;
};

int print_recipe(const RecipeArguments& arguments) {
  recipe::Recipe recipe = recipe::read_recipe(arguments.recipe);
  check_mesh_alone(arguments.mesh, arguments.changes);
  for (const auto& [name, value] : changes_of_mesh_and_flags(arguments.mesh, arguments.changes))
    recipe::set_field(recipe, name, value);
  std::cout << (arguments.json ? to_json(recipe) + "\n" : recipe::to_toml(recipe)) << std::flush;
  return 0;
}

}  // namespace

void add_recipe(Verb app, const RunOptions& options) {
  Verb verb = app.add_verb("recipe", "Print a recipe in full: every key with its value");
  auto arguments = std::make_shared<RecipeArguments>();
  verb.add("recipe", arguments->recipe, "A TOML file, see recipes/").required().type("RECIPE");
  verb.add_switch("--json", arguments->json, "Print one JSON object instead of TOML");
  verb.add("--mesh", arguments->mesh,
           "[mesh] as `trestle train --mesh` sets it: pipeline=2,tensor=2. A dimension that is not "
           "named has size 1")
      .type("NAME=N,...");
  add_field_flags(verb, arguments->changes, options);
  verb.footer(examples({"trestle recipe recipes/unet_quick.toml",
                        "trestle recipe recipes/unet_quick.toml --epochs 3 > mine.toml",
                        "trestle recipe recipes/gpt_characters.toml --mesh pipeline=2,tensor=2",
                        "trestle recipe runs/unet_quick/recipe.toml --json"}) +
              exit_codes());
  verb.action([arguments] { return print_recipe(*arguments); });
}

}  // namespace trestle::cli
