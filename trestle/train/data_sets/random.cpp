#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/random_tensors.h"
#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace {

OpenedData open_random(const recipe::Recipe& recipe) {
  std::vector<std::string> missing;
  if (recipe.data.shape.empty()) missing.emplace_back("'shape' in [data]");
  if (recipe.data.count == 0) missing.emplace_back("'count' in [data]");
  if (recipe.model.classes == 0) missing.emplace_back("'classes' in [model]");
  if (!missing.empty()) throw UsageError(text("random needs ", join(missing, " and ")));
  return {all_of(std::make_shared<data::RandomTensors>(
              data::RandomTensorsOptions{.shape = recipe.data.shape,
                                         .classes = recipe.model.classes,
                                         .count = recipe.data.count,
                                         .targets = data::parse_random_targets(recipe.data.targets),
                                         .seed = static_cast<std::uint64_t>(recipe.train.seed)})),
          {}};
}

}  // namespace

// Random numbers, generated on the fly.
DataSet random_set() {
  return {.name = "random",
          .summary = "random numbers, made as they are needed: for measuring steps",
          .loss = "mean_squared_error",
          .metric = "accuracy",
          .predicts = Predicts::Class,
          .paths = {},
          .keys = {"shape", "count", "targets"},
          .open = open_random,
          .check = [](const recipe::Recipe& recipe, const data::CheckProgress&) {
            data::CheckReport report;
            report.count = recipe.data.count;
            return report;
          }};
}

}  // namespace trestle::train
