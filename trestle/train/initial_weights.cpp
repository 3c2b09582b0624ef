#include "trestle/train/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/sliced_weights.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/models/transformer/adapters.h"
#include "trestle/train/language/load_adapters.h"
#include "trestle/train/language/load_public_weights.h"
#include "trestle/train/language/new_tokens.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/optimizers/parameter_groups.h"

namespace trestle::train {

namespace {

// The adapters of the folder must be those of the recipe, whose numbers the run saves.
void check_initial_adapters(const recipe::Recipe& recipe) {
  const std::string& folder = recipe.adapters.weights;
  if (folder.empty()) return;
  if (recipe.adapters.rank == 0)
    throw UsageError("'adapter_weights' in [adapters] needs 'adapter_rank'");
  const models::LowRankOptions stored = read_adapter_options(folder);
  models::LowRankOptions wanted = adapter_options(recipe);
  std::vector<std::string> faults;
  if (stored.rank != wanted.rank)
    faults.push_back(
        text("rank ", stored.rank, ", and the recipe's 'adapter_rank' is ", wanted.rank));
  constexpr double rounding = 1e-9;
  if (std::abs(stored.alpha - wanted.alpha) > rounding * stored.alpha)
    faults.push_back(
        text("alpha ", stored.alpha, ", and the recipe's 'adapter_alpha' is ", wanted.alpha));
  std::vector<std::string> targets = stored.targets;
  std::sort(targets.begin(), targets.end());
  std::sort(wanted.targets.begin(), wanted.targets.end());
  if (targets != wanted.targets)
    faults.push_back(text("targets ", join(targets, ", "), ", and the recipe's 'adapter_targets' ",
                          "are ", join(wanted.targets, ", ")));
  if (faults.empty()) return;
  throw UsageError(
      text(folder, ": these adapters do not fit the recipe: they have ", join(faults, "; ")));
}

// The tokens that the model has and the file of its weights does not. Below 0: the other way round.
std::int64_t new_tokens(const recipe::Recipe& recipe) {
  const models::TransformerConfig config = transformer_config(recipe);
  const std::int64_t known = tokens_of_weights(config, recipe.model.weights);
  return known == 0 ? 0 : config.vocabulary - known;
}

bool freezes(const recipe::Recipe& recipe, const char* parameter) {
  const auto& frozen = recipe.optimizer.frozen;
  return std::any_of(frozen.begin(), frozen.end(), [&](const std::string& pattern) {
    return names_parameter(pattern, parameter);
  });
}

void check_tokens_of_weights(const recipe::Recipe& recipe) {
  const std::int64_t added = new_tokens(recipe);
  const std::string& file = recipe.model.weights;
  if (added < 0 && recipe.model.weights_strict) {
    const std::int64_t tokens = transformer_config(recipe).vocabulary;
    throw UsageError(
        text("the weights have the rows of ", tokens - added, " tokens, and the model ",
             "would have ", tokens, ": rows of tokens are added, not removed"),
        {.file = file,
         .hint = text("Set 'vocabulary' in [transformer] to ", tokens - added,
                      " or more, or leave it out.")});
  }
  if (added <= 0) return;
  if (recipe.adapters.rank > 0) refuse_frozen_new_tokens(added, file);
  for (const char* const table : {"embed.tokens", "head.weight"})
    if (freezes(recipe, table))
      throw UsageError(text(counted(added, "new token"), " would never be learned: 'frozen' in ",
                            "[optimizer] freezes ", table, ", which has their rows"),
                       {.file = file, .hint = "Train the embedding and the head."});
}

std::string note_on_new_tokens(const recipe::Recipe& recipe) {
  const std::int64_t added = is_transformer(recipe) ? new_tokens(recipe) : 0;
  if (added <= 0) return {};
  return text(counted(added, "token"),
              " that the weights do not have: the mean of all rows is their initial row");
}

}  // namespace

void check_initial_weights(const recipe::Recipe& recipe) {
  check_initial_adapters(recipe);
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
  if (is_transformer(recipe)) check_tokens_of_weights(recipe);
}

std::vector<InitialFile> initial_files(const recipe::Recipe& recipe,
                                       const nn::ParameterSlices& slices) {
  std::vector<InitialFile> files;
  const std::string& weights = recipe.model.weights;
  if (!weights.empty())
    files.push_back({.title = "weights",
                     .path = weights,
                     .strict = recipe.model.weights_strict,
                     .filled = [](const NamedTensors& model) { return model; },
                     .load =
                         [recipe, weights, slices](const NamedTensors& model,
                                                   const checkpoint::LoadOptions& options) {
                           if (is_transformer(recipe))
                             return load_transformer_weights(transformer_config(recipe), model,
                                                             weights, options, NewTokens::Filled,
                                                             slices);
                           return checkpoint::load_sliced_weights(model, slices, weights, options);
                         },
                     .note = note_on_new_tokens(recipe)});
  const std::string& adapters = recipe.adapters.weights;
  if (!adapters.empty() && is_transformer(recipe))
    files.push_back({.title = "adapters",
                     .path = adapters,
                     .strict = true,
                     .filled = [](const NamedTensors& model) { return models::adapters_of(model); },
                     .load =
                         [recipe, adapters, slices](const NamedTensors& model,
                                                    const checkpoint::LoadOptions& options) {
                           return load_adapters(transformer_config(recipe), model, adapters,
                                                options, slices);
                         }});
  return files;
}

std::string title_column(const std::string& title) {
  constexpr std::size_t width = 10;
  return title + std::string(width - std::min(title.size(), width), ' ');
}

void note_loaded(const InitialFile& file, const checkpoint::LoadReport& report,
                 Progress& progress) {
  progress.note(text(title_column(file.title), file.path, ": ", checkpoint::describe(report)));
  if (!file.note.empty()) progress.note(title_column("new rows") + file.note);
}

void load_initial_weights(const recipe::Recipe& recipe, const NamedTensors& model,
                          Progress& progress) {
  for (const InitialFile& file : initial_files(recipe)) {
    note_loaded(file, file.load(file.filled(model), {.strict = file.strict}), progress);
  }
}

}  // namespace trestle::train
