#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/tokens/tokenizer.h"

// A text that the model writes after each epoch: which tokens it continues, how the next one is
// chosen, and the words of the tokens. train/epoch_sample.h runs the model. Not installed.
namespace trestle::train {

class TextSample {
 public:
  // All ranks need the same.
  struct Task {
    std::vector<std::int64_t> prompt;  // the first tokens of the validation text; empty: no sample
    std::int64_t tokens = 0;           // new ones
    std::int64_t allowed = 0;          // ids from this on are never chosen
  };

  // For a recipe with a language model whose tokens have a tokenizer; the task is empty otherwise.
  explicit TextSample(const recipe::Recipe& recipe);

  const Task& task() const { return task_; }
  // Prompt and new tokens as text.
  std::string text_of(const std::vector<std::int64_t>& ids) const;

 private:
  Task task_;
  std::shared_ptr<const tokens::Tokenizer> tokenizer_;
};

// Draws the token behind `so_far` at temperature 0.8 from scores [vocabulary].
std::int64_t choose_sample_token(const at::Tensor& scores, const std::vector<std::int64_t>& so_far,
                                 std::int64_t allowed, std::uint64_t seed);

}  // namespace trestle::train
