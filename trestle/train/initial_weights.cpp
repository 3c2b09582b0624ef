#include "trestle/train/initial_weights.h"

#include <filesystem>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"

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

void load_initial_weights(const recipe::Recipe& recipe, const NamedTensors& model,
                          Progress& progress) {
  const std::string& file = recipe.model.weights;
  if (file.empty()) return;
  const checkpoint::LoadReport report =
      checkpoint::load_weights(model, file, {.strict = recipe.model.weights_strict});
  progress.note(text("weights   ", file, ": ", checkpoint::describe(report)));
}

}  // namespace trestle::train
