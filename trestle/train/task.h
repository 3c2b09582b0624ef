#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/data/loader.h"
#include "trestle/nn/loss.h"
#include "trestle/nn/metrics.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/picture.h"
#include "trestle/train/progress.h"
#include "trestle/train/synthesize_data.h"
#include "trestle/train/user_parts.h"

// What is to be learnt: the data, the loss and the metric that a recipe names.
namespace trestle::train {

struct OpenedData;  // data_set.h

struct Task {
  recipe::Recipe::Data data;  // the recipe's, with the paths of what was opened (find_data.h)
  std::string synthetic;      // where the data lie if they are synthetic; empty for real ones
  std::unique_ptr<data::Loader> training;  // shuffled, keyed by (train.seed, epoch)
  // In order, nothing dropped; null where nothing is kept for it.
  std::unique_ptr<data::Loader> validation;
  nn::Loss loss;
  std::string metric_name;  // larger is better
  std::function<nn::Tally(const at::Tensor& output, const at::Tensor& target)> metric;
  // Nothing for examples that are no pictures.
  std::function<std::optional<data::Image>(const data::Batch& batch, const at::Tensor& output,
                                           const PictureText& text)>
      picture;
};

// Opens the data, those that find_data() finds. Throws UsageError for missing folders and unknown
// names, FormatError for data that is not right.
Task make_task(const recipe::Recipe& recipe, Progress& progress, const UserParts& own = {},
               const SynthesisProgress& on_synthesized = {});

// The same to judge a model, without training data: `validation` is there, `training` is null.
enum class Judged {
  Validation,  // what a training keeps for it
  Everything,  // all examples, but for data sets with a part of their own for validation: that part
};
// Throws UsageError where there is nothing to judge by, too.
Task make_judging_task(const recipe::Recipe& recipe, Progress& progress, const UserParts& own,
                       Judged judged);

// Throws UsageError for data that are whole and do not do for the recipe: fewer than a batch, more
// classes than the model has, none kept for a metric that something goes by.
void check_examples(const recipe::Recipe& recipe, const OpenedData& data);

// The same for a recipe's loss and metric only.
nn::Loss loss_of(const recipe::Recipe& recipe, const UserParts& own = {});

// The name of the metric of a recipe, or of its data set. Throws UsageError for one that is not known.
std::string metric_of(const recipe::Recipe& recipe, const UserParts& own = {});

// Those that a recipe can name.
std::vector<std::string> metric_names(const UserParts& own = {});
std::vector<std::string> loss_names(const UserParts& own = {});

}  // namespace trestle::train
