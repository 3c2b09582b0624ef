#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "trestle/models/transformer/config.h"
#include "trestle/nn/layers.h"
#include "trestle/recipe/recipe.h"
#include "trestle/tokens/tokenizer.h"

// A text that the model writes after each epoch. Not installed.
namespace trestle::train {

class TextSample {
 public:
  // For a recipe with a language model whose tokens have a tokenizer; can_write() is false
  // otherwise. `model` is the pipeline's, whose modules it uses where they are.
  TextSample(const recipe::Recipe& recipe, const nn::Layers& model);

  bool can_write() const { return tokenizer_ != nullptr; }

  // Continues the first tokens of the validation text by `tokens` tokens, drawn at temperature 0.8
  // with the run's seed.
  std::string write(std::int64_t tokens) const;

 private:
  nn::Layers model_;
  models::TransformerConfig config_;
  std::shared_ptr<const tokens::Tokenizer> tokenizer_;
  std::vector<std::int64_t> prompt_;
  std::uint64_t seed_ = 0;
};

}  // namespace trestle::train
