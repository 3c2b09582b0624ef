#include "trestle/train/language/model_flops.h"

#include "trestle/models/transformer/read_config.h"
#include "trestle/train/language/transformer_recipe.h"

namespace trestle::train {

namespace {

// Products with padded rows are no work of the model.
double used_parameters(models::TransformerConfig config) {
  config.vocabulary_multiple = 1;
  return static_cast<double>(models::parameter_count(config));
}

}  // namespace

double flops_per_token(const models::TransformerConfig& config, std::int64_t row) {
  const auto attention = static_cast<double>(config.layers * config.heads * config.head_size);
  return 6 * used_parameters(config) + 12 * attention * static_cast<double>(row);
}

double flops_per_token(const recipe::Recipe& recipe) {
  if (!is_transformer(recipe) || recipe.data.name != "tokens") return 0;
  const models::TransformerConfig config = transformer_config(recipe);
  const double whole = flops_per_token(config, config.context);
  return recipe.adapters.rank > 0 ? whole - 2 * used_parameters(config) : whole;
}

}  // namespace trestle::train
