#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trestle/data/loader.h"
#include "trestle/nn/loss.h"
#include "trestle/nn/metrics.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/picture.h"
#include "trestle/train/progress.h"

// What is to be learnt: the data, the loss and the metric that a recipe names.
namespace trestle::train {

struct Task {
  std::unique_ptr<data::Loader> training;  // shuffled, keyed by (train.seed, epoch)
  // In order, nothing dropped; null where nothing is kept for it.
  std::unique_ptr<data::Loader> validation;
  nn::Loss loss;
  std::string metric_name;  // larger is better
  std::function<nn::Tally(const at::Tensor& output, const at::Tensor& target)> metric;
  std::function<data::Image(const data::Batch& batch, const at::Tensor& output,
                            const PictureText& text)>
      picture;
};

// Opens the data. Where its folders are missing and the recipe says `synthesize`, makes synthetic
// data first, all or nothing, and says so. Throws UsageError for missing folders and unknown names,
// FormatError for data that is not right.
Task make_task(const recipe::Recipe& recipe, Progress& progress);

// The same for a recipe's loss and metric only.
nn::Loss loss_of(const recipe::Recipe& recipe);

// Those that a recipe can name.
std::vector<std::string> metric_names();

}  // namespace trestle::train
