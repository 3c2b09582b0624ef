#include "trestle/train/split_layers.h"

#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/graph.h"
#include "trestle/tensor_parallel/split_rule_text.h"
#include "trestle/train/language/transformer_recipe.h"

namespace trestle::train {

namespace {

std::vector<tensor_parallel::SplitRule> given_rules(const recipe::Recipe& recipe) {
  std::vector<tensor_parallel::SplitRule> rules;
  for (const std::string& words : recipe.mesh.split_layers) {
    try {
      rules.push_back(tensor_parallel::parse_split_rule(words));
    } catch (UsageError& error) {
      error.add_context("in 'split_layers' of [mesh] (--split-layers)");
      throw;
    }
  }
  return rules;
}

}  // namespace

void check_split_of_layers(const recipe::Recipe& recipe) {
  given_rules(recipe);
  if (recipe.mesh.tensor == 1) return;
  const auto refuse = [&](const char* key, const char* section, const char* why) {
    throw UsageError(text("'", key, "' in [", section, "] ", why, ", and the model is '",
                          recipe.model.name, "'"),
                     {.hint = "Leave it out."});
  };
  if (is_transformer(recipe)) {
    if (!recipe.mesh.split_layers.empty())
      refuse("split_layers", "mesh", "is not for transformers, which have a split of their own");
    return;
  }
  if (recipe.mesh.sequence_parallel)
    refuse("sequence_parallel", "mesh", "divides the tokens of transformers");
  if (recipe.pipeline.split_recomputed)
    refuse("split_recomputed", "pipeline", "divides the inputs of a transformer's blocks");
}

tensor_parallel::SplitPlan split_layers(const recipe::Recipe& recipe, const nn::Layers& model,
                                        const models::ModelOptions& options,
                                        const models::OwnModels& own,
                                        const tensor_parallel::TensorRanks& ranks) {
  const bool is_own = own.contains(options.name);
  if (ranks.alone() || options.transformer) return {};
  auto rules = given_rules(recipe);
  if (rules.empty() && !is_own) rules = models::split_plan(options);
  if (!rules.empty()) return tensor_parallel::split(model, ranks, rules);
  if (!nn::slices_of(model.graph()).empty()) return {};
  throw UsageError(text("'tensor' = ", ranks.size(), " in [mesh] needs a split of the model '",
                        options.name, "', which has none"),
                   {.hint = "Name the layers in 'split_layers' of [mesh], for example [\"up "
                            "columns\", \"down rows\"]."});
}

}  // namespace trestle::train
