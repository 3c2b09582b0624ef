#include "trestle/cli/tensor_level.h"

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/setup.h"
#include "trestle/train/task.h"

namespace trestle::cli {

namespace {

using plan::BlockSettings;

// `names` as in 'checkpoint' of [pipeline].
BlockSettings::Recompute recomputed_part(const std::vector<std::string>& names) {
  const auto has = [&](const char* name) { return std::ranges::count(names, name) > 0; };
  if (has("blocks") || has("layers")) return BlockSettings::Recompute::Block;
  return has("attention") ? BlockSettings::Recompute::Attention : BlockSettings::Recompute::Nothing;
}

plan::StepTraffic traffic(const models::TransformerConfig& config,
                          const train::LevelsOptions& options, const recipe::Recipe& recipe) {
  const plan::BlockSizes sizes{.style = config.style == models::TransformerConfig::Style::Llama
                                            ? plan::BlockSizes::Style::Llama
                                            : plan::BlockSizes::Style::Gpt2,
                               .batch = options.batch,
                               .tokens = config.context,
                               .width = config.width,
                               .heads = config.heads,
                               .kv_heads = config.kv_heads,
                               .head_size = config.head_size,
                               .mlp = config.mlp};
  const BlockSettings settings{.numbers = BlockSettings::Numbers::Float32,
                               .recompute = recomputed_part(recipe.pipeline.checkpoint),
                               .tensor = options.ranks,
                               .sequence = recipe.mesh.sequence_parallel,
                               .split_input = recipe.pipeline.split_recomputed};
  plan::StepTraffic step = plan::traffic_of_vocabulary(
      sizes, settings,
      {.rows = models::table_rows(config), .joins_scores = !train::splits_scores(recipe)});
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const plan::StepTraffic block = plan::traffic_of_block(sizes, settings);
    step.forward += block.forward;
    step.backward += block.backward;
  }
  return step;
}

}  // namespace

std::optional<train::TensorLevel> tensor_level(const recipe::Recipe& recipe,
                                               const train::LevelsOptions& options,
                                               const models::OwnModels& own, std::string* why) {
  if (!train::is_transformer(recipe) || own.contains(recipe.model.name)) return {};
  if (train::adapter_options(recipe).any() ||
      train::frozen_type(recipe) != models::FrozenType::Float32) {
    *why =
        "its formula is that of a model whose weights are all trained, and this one has adapters "
        "or frozen matrices";
    return {};
  }
  const bool sequence = recipe.mesh.sequence_parallel;
  const auto split = [sequence](const tensor_parallel::TensorRanks& ranks) {
    return models::TensorSplit{.ranks = ranks, .sequence = sequence};
  };
  try {
    train::make_model(recipe, own, split(tensor_parallel::TensorRanks::on_paper(0, options.ranks)));
  } catch (const UsageError& error) {
    *why = error.what();
    return {};
  }
  train::TensorLevel level;
  level.make = [recipe, own, split](const tensor_parallel::TensorRanks& ranks) {
    return train::make_frozen_model(recipe, own, split(ranks));
  };
  level.loss = [recipe, split](const tensor_parallel::TensorRanks& ranks) {
    return train::loss_of_split(recipe, {}, split(ranks));
  };
  level.splits_recomputed = recipe.pipeline.split_recomputed;
  level.traffic = traffic(train::transformer_config(recipe), options, recipe);
  return level;
}

}  // namespace trestle::cli
