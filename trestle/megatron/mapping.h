#pragma once

#include <cstdint>
#include <string>

#include "trestle/megatron/reading.h"
#include "trestle/megatron/recipe_text.h"

// Each section of a recipe, from the flags. A fault is added to `reading`. Not installed.
namespace trestle::megatron {

// The sizes that several sections need.
struct Sizes {
  // The model, 1 where a flag is missing.
  std::int64_t layers = 1, heads = 1, mlp = 1, sequence = 1;
  // The ranks.
  std::int64_t tensor = 1, pipeline = 1, data_parallel = 1;
  // In examples: batch = micro_batch * data_parallel * micro_batches.
  std::int64_t micro_batch = 1, batch = 1, micro_batches = 1;
  // In steps.
  std::int64_t steps = 1, steps_per_epoch = 1;
  bool has_fp16 = false;
};

// `ranks` is 0 if the caller does not name the number of ranks.
Sizes read_sizes(Reading& reading, int ranks);

void map_model(Reading& reading, const Sizes& sizes, RecipeText& out);  // [model], [transformer]
void map_data(Reading& reading, const Sizes& sizes, RecipeText& out);   // [data]
void map_ranks(Reading& reading, const Sizes& sizes, RecipeText& out);  // [mesh], [pipeline]
void map_optimizer(Reading& reading, const Sizes& sizes, RecipeText& out);  // [optimizer]
void map_run(Reading& reading, const Sizes& sizes, RecipeText& out);        // [train]

// How to prepare the text that [data] names, as comments.
void explain_text(Reading& reading, RecipeText& out);

}  // namespace trestle::megatron
