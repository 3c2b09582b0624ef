#include "trestle/train/initial_weights.h"

#include <filesystem>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/train/language/load_public_weights.h"
#include "trestle/train/language/transformer_recipe.h"

namespace trestle::train {

void check_initial_weights(const recipe::Recipe& recipe) {
  const std::string& file = recipe.model.weights;
  if (file.empty()) return;
  if (!std::filesystem::exists(file))
    throw UsageError(text(file, ": there is no such file"),
                     {.hint = "'weights' in [model] names it; leave it out to begin with random "
                              "weights."});
  const std::filesystem::path path = file;
  if (std::filesystem::exists(path / "recipe.toml"))
    throw UsageError(text(file, ": is the folder of a run, not a file of weights"),
                     {.hint = text("'weights' in [model] takes its best weights, ",
                                   (path / "best.safetensors").string(), ", or its last ones, ",
                                   (path / "last").string(), ".")});
  checkpoint::list_weights(file);
}

checkpoint::LoadReport load_weights_of(const recipe::Recipe& recipe, const NamedTensors& model,
                                       const checkpoint::LoadOptions& options) {
  const std::string& file = recipe.model.weights;
  if (is_transformer(recipe))
    return load_transformer_weights(transformer_config(recipe), model, file, options);
  return checkpoint::load_weights(model, file, options);
}

void load_initial_weights(const recipe::Recipe& recipe, const NamedTensors& model,
                          Progress& progress) {
  const std::string& file = recipe.model.weights;
  if (file.empty()) return;
  const checkpoint::LoadReport report =
      load_weights_of(recipe, model, {.strict = recipe.model.weights_strict});
  progress.note(text("weights   ", file, ": ", checkpoint::describe(report)));
}

}  // namespace trestle::train
