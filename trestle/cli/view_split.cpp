#include "trestle/cli/view_split.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/cli/json.h"
#include "trestle/cli/mesh_flags.h"
#include "trestle/recipe/recipe.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/split_picture.h"

namespace trestle::cli {

namespace {

// The fields of a recipe that are flags of the split: what determines it.
const std::vector<std::string> split_fields = {
    "model.width",        "transformer.config",     "transformer.vocabulary",
    "transformer.layers", "transformer.heads",      "transformer.kv_heads",
    "transformer.mlp",    "mesh.sequence_parallel", "mesh.split_layers"};

std::string dashed(std::string key) {
  for (char& letter : key)
    if (letter == '_') letter = '-';
  return key;
}

recipe::Recipe recipe_of_split(const std::string& given, const SplitArguments& arguments) {
  namespace fs = std::filesystem;
  const fs::path of_run = fs::path(given) / "recipe.toml";
  recipe::Recipe recipe = recipe::read_recipe(fs::exists(of_run) ? of_run : fs::path(given));
  for (const auto& [name, value] : changes_of_mesh_and_flags(arguments.mesh, arguments.changes))
    recipe::set_field(recipe, name, value);
  return recipe;
}

}  // namespace

void add_split_flags(Verb verb, SplitArguments& arguments, const RunOptions& options) {
  verb.add_switch(
      "--split", arguments.split,
      "Draw which tensor rank holds which rows and columns of a model's layers, and what the ranks "
      "send to one another");
  verb.add("--mesh", arguments.mesh,
           "With --split: the ranks, as in train: tensor=4 (default: the recipe's [mesh])")
      .type("NAME=N,...");
  add_field_flags(verb, arguments.changes, options, split_fields);
}

void refuse_split_flags(const Verb& verb) {
  std::vector<std::string> flags = {"--mesh"};
  for (const std::string& name : split_fields)
    flags.push_back("--" + dashed(name.substr(name.find('.') + 1)));
  refuse_without_effect(verb, flags, "without --split");
}

int view_split(const std::string& recipe, const SplitArguments& arguments, const std::string& out,
               bool json, const RunOptions& options) {
  const recipe::Recipe read = recipe_of_split(recipe, arguments);
  const bool one_rank = arguments.mesh.find("tensor") != std::string::npos;
  if (read.mesh.tensor == 1 && !one_rank)
    throw UsageError(text("--split: the mesh of ", recipe, " has no tensor ranks"),
                     {.hint = "Give their number, for example --mesh tensor=4."});
  recipe::check_recipe(read);
  const view::SplitPicture picture = train::split_picture(read, options.models);
  std::vector<std::string> written;
  if (!out.empty()) {
    const bool svg = std::filesystem::path(out).extension() == ".svg";
    write_file(out, svg ? view::to_svg_split(picture) : view::to_text_split(picture));
    written.push_back(out);
  }
  if (json) {
    std::cout << split_json(picture, written) << std::endl;
    return 0;
  }
  std::cout << view::to_text_split(picture, columns_for_text(STDOUT_FILENO));
  for (const std::string& file : written) std::cout << "wrote " << file << "\n";
  std::cout << std::flush;
  return 0;
}

}  // namespace trestle::cli
