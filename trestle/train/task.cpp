#include "trestle/train/task.h"

#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/train/data_set.h"

namespace trestle::train {

namespace {

struct Metric {
  std::string name;
  nn::Tally (*tally)(const at::Tensor& output, const at::Tensor& target);
};

// The validation metrics; of each a larger value is better.
const std::vector<Metric>& metrics() {
  static const std::vector<Metric> all = {
      {"dice", [](const at::Tensor& output,
                  const at::Tensor& target) { return nn::dice_tally(output, target); }},
      {"accuracy", nn::accuracy_tally},
  };
  return all;
}

const Metric& find_metric(const std::string& name) { return choose("metric", name, metrics()); }

std::unique_ptr<data::Loader> training_loader(const recipe::Recipe& recipe, Examples examples) {
  data::LoaderOptions options;
  options.batch = recipe.train.batch;
  options.order = data::Order::Shuffled;
  options.last_batch = recipe.train.drop_last ? data::LastBatch::Drop : data::LastBatch::Keep;
  options.seed = static_cast<std::uint64_t>(recipe.train.seed);
  options.workers = static_cast<int>(recipe.data.workers);
  if (recipe.train.drop_last &&
      static_cast<std::int64_t>(examples.indices.size()) < recipe.train.batch)
    throw UsageError(text("there are ", examples.indices.size(),
                          " examples to train on, fewer than one batch of ", recipe.train.batch),
                     {.hint = "Make 'batch' in [train] smaller, or set drop_last = false."});
  return std::make_unique<data::Loader>(std::move(examples.dataset), std::move(examples.indices),
                                        options);
}

std::unique_ptr<data::Loader> validation_loader(const recipe::Recipe& recipe, Examples examples) {
  if (examples.indices.empty()) return nullptr;
  data::LoaderOptions options;
  options.batch = recipe.train.batch;
  options.workers = static_cast<int>(recipe.data.workers);
  return std::make_unique<data::Loader>(std::move(examples.dataset), std::move(examples.indices),
                                        options);
}

OpenedData open_data(const recipe::Recipe& recipe, Progress& progress) {
  const DataSet& set = find_data_set(recipe.data.name);
  if (recipe.data.synthesize > 0) set.synthesize_missing(recipe, progress);
  return set.open(recipe);
}

}  // namespace

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const Metric& metric : metrics()) names.push_back(metric.name);
  return names;
}

nn::Loss loss_of(const recipe::Recipe& recipe) {
  const std::string& name = recipe.train.loss;
  return nn::make_loss(name.empty() ? find_data_set(recipe.data.name).loss : name);
}

Task make_task(const recipe::Recipe& recipe, Progress& progress) {
  const DataSet& set = find_data_set(recipe.data.name);
  const Metric& metric =
      find_metric(recipe.train.metric.empty() ? set.metric : recipe.train.metric);
  Task task;
  task.loss = loss_of(recipe);
  task.metric_name = metric.name;
  task.metric = metric.tally;
  const auto draw = set.predicts == Predicts::Mask ? draw_masks : draw_classes;
  task.picture = [draw](const data::Batch& batch, const at::Tensor& output,
                        const PictureText& words) {
    return draw(batch.inputs, batch.targets, output, words);
  };
  OpenedData opened = open_data(recipe, progress);
  task.training = training_loader(recipe, std::move(opened.training));
  task.validation = validation_loader(recipe, std::move(opened.validation));
  return task;
}

}  // namespace trestle::train
