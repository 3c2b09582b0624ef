#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "trestle/data/dataset.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/user_parts.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The facts about the data that a plan needs.
struct DataOnPaper {
  at::Tensor example;                         // [1, ...], as the model gets it
  data::Sample sample;                        // the same with its target, if the data are there
  std::int64_t training = 0, validation = 0;  // 0 and 0 where they are not there
  std::string missing;                        // why not
  std::string synthetic;                      // where they lie if they are synthetic
};

// Reads one sample of the recipe's data, and their number. Data that are missing give a sample
// of zeros with the usual sizes, where the data set has some. Throws UsageError as train().
DataOnPaper look_at_data(const recipe::Recipe& recipe, const UserParts& own);

}  // namespace trestle::train
