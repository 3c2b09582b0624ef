#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/data/loader.h"
#include "trestle/models/transformer/tensor_split.h"
#include "trestle/nn/loss.h"
#include "trestle/nn/metrics.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/synthesize_data.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/picture.h"
#include "trestle/train/progress/progress.h"

// The data, the loss and the metric that a recipe names.
namespace trestle::train {

struct OpenedData;  // data_set.h

struct Task {
  recipe::Recipe::Data data;  // the recipe's, with the paths that were opened (find_data.h)
  std::string synthetic;      // the folder of synthetic data; empty for real data
  std::unique_ptr<data::Loader> training;  // shuffled, keyed by (train.seed, epoch)
  // All examples in order; null where no data are kept for validation.
  std::unique_ptr<data::Loader> validation;
  nn::Loss loss;
  std::string metric_name;  // larger is better
  std::function<nn::Tally(const at::Tensor& output, const at::Tensor& target)> metric;
  // Draws a batch with its output; nothing for examples that are not images.
  std::function<std::optional<data::Image>(const data::Batch& batch, const at::Tensor& output,
                                           const PictureText& text)>
      picture;
};

// Opens the data that find_data() finds. Throws UsageError for missing folders and unknown names,
// FormatError for invalid data.
Task make_task(const recipe::Recipe& recipe, Progress& progress, const UserParts& own = {},
               const SynthesisProgress& on_synthesized = {});

// Which examples evaluate a trained model.
enum class Judged {
  Validation,  // those that the training kept for validation
  Everything,  // all examples; of data sets with a validation split of their own, that split
};
// A task without training data: `training` is null. Throws as make_task(), and UsageError where no
// examples are left to evaluate.
Task make_judging_task(const recipe::Recipe& recipe, Progress& progress, const UserParts& own,
                       Judged judged);

// Throws UsageError for valid data that do not fit the recipe: fewer examples than a batch, more
// classes than the model has, or no validation data where an option needs the validation metric.
void check_examples(const recipe::Recipe& recipe, const OpenedData& data,
                    const UserParts& own = {});

// The loss of a recipe, or of its data set. Throws UsageError for an unknown one.
nn::Loss loss_of(const recipe::Recipe& recipe, const UserParts& own = {});

// The same where tensor ranks hold the scores of a language model together: in training it takes
// this rank's scores, and those of the whole vocabulary too. If splits_scores() is false,
// the model returns whole scores in training too.
nn::Loss loss_of_split(const recipe::Recipe& recipe, const UserParts& own,
                       const models::TensorSplit& tensor);
bool splits_scores(const recipe::Recipe& recipe);

// The name of the metric of a recipe, or of its data set. Throws UsageError for an unknown one.
std::string metric_of(const recipe::Recipe& recipe, const UserParts& own = {});

// The names that a recipe can use.
std::vector<std::string> metric_names(const UserParts& own = {});
std::vector<std::string> loss_names(const UserParts& own = {});

}  // namespace trestle::train
