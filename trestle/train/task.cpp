#include "trestle/train/task.h"

#include <algorithm>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/augment.h"
#include "trestle/data/augment_volumes.h"
#include "trestle/data/segmentation.h"
#include "trestle/nn/token_loss.h"
#include "trestle/tensor_parallel/vocabulary_cross_entropy.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/data_sets/data_sets.h"
#include "trestle/train/data_sets/find_data.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/volume_picture.h"

namespace trestle::train {

static_assert(data::ignored_target == nn::ignored_target);

namespace {

struct Metric {
  std::string name;
  std::function<nn::Tally(const at::Tensor& output, const at::Tensor& target)> tally;
};

// The validation metrics. A larger value is better.
std::vector<Metric> metrics(const UserParts& own) {
  std::vector<Metric> all = {
      {"dice", [](const at::Tensor& output,
                  const at::Tensor& target) { return nn::dice_tally(output, target); }},
      {"accuracy", nn::accuracy_tally},
      {"voxel_dice", nn::voxel_dice_tally},
      {"log_probability", nn::log_probability_tally},
      {"token_accuracy", nn::token_accuracy_tally},
  };
  for (const auto& [name, tally] : own.metrics) all.push_back({name, tally});
  return all;
}

// The random variation of training examples; null where the recipe sets none.
std::function<data::Sample(data::Sample, std::uint64_t)> variation_of(
    const recipe::Recipe::Data& keys, const DataSet& set) {
  if (set.volume) {
    const data::VolumeAugmentOptions augment{.flip_axes = data::parse_axes(keys.flip_axes),
                                             .intensity = keys.intensity};
    if (!augment.any()) return {};
    return [augment](data::Sample sample, std::uint64_t key) {
      return data::vary_volume(std::move(sample), data::draw_volume_variation(augment, key));
    };
  }
  const data::AugmentOptions augment{
      .flip = data::parse_flip(keys.flip), .crop = keys.crop, .colour = keys.colour};
  if (!augment.any()) return {};
  return [augment](data::Sample sample, std::uint64_t key) {
    return data::vary(std::move(sample), data::draw_variation(augment, key));
  };
}

std::unique_ptr<data::Loader> training_loader(const recipe::Recipe& recipe, const DataSet& set,
                                              Examples examples) {
  data::LoaderOptions options;
  options.batch = recipe.train.batch;
  options.order = data::Order::Shuffled;
  options.last_batch = recipe.train.drop_last ? data::LastBatch::Drop : data::LastBatch::Keep;
  options.seed = static_cast<std::uint64_t>(recipe.train.seed);
  options.workers = static_cast<int>(recipe.data.workers);
  options.transform = variation_of(recipe.data, set);
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

// Draws masks or classes, depending on the shapes of the tensors.
std::optional<data::Image> draw(const data::Batch& batch, const at::Tensor& output,
                                const PictureText& words) {
  const at::Tensor &x = batch.inputs, &y = batch.targets;
  const bool volumes = x.dim() == 5 && y.dim() == 4 && output.dim() == 5 && x.is_floating_point() &&
                       y.scalar_type() == at::kLong;
  if (volumes) return draw_volumes(x, y, output, words);
  const bool pictures = x.dim() == 4 && x.is_floating_point() && (x.size(1) == 1 || x.size(1) == 3);
  if (!pictures || y.scalar_type() != at::kLong || output.dim() != y.dim() + 1) return std::nullopt;
  if (y.dim() == 3) return draw_masks(x, y, output, words);
  if (y.dim() == 1) return draw_classes(x, y, output, words);
  return std::nullopt;
}

}  // namespace

std::vector<std::string> metric_names(const UserParts& own) {
  std::vector<std::string> names;
  for (const Metric& metric : metrics(own)) names.push_back(metric.name);
  return names;
}

std::vector<std::string> loss_names(const UserParts& own) {
  std::vector<std::string> names = nn::loss_names();
  for (const auto& [name, make] : own.losses) names.push_back(name);
  return names;
}

nn::Loss loss_of(const recipe::Recipe& recipe, const UserParts& own) {
  const std::string name =
      recipe.train.loss.empty() ? find_data_set(recipe.data.name, own).loss : recipe.train.loss;
  if (const auto found = own.losses.find(name); found != own.losses.end()) return found->second();
  const std::vector<std::string> known = loss_names(own);
  if (std::find(known.begin(), known.end(), name) == known.end())
    throw_unknown("loss", name, known);
  return nn::make_loss(name, {.ignores = !recipe.data.mask_ignore.empty()});
}

bool splits_scores(const recipe::Recipe& recipe) {
  return is_transformer(recipe) && recipe.data.name == "tokens" &&
         (recipe.train.loss.empty() || recipe.train.loss == nn::token_cross_entropy().name);
}

nn::Loss loss_of_split(const recipe::Recipe& recipe, const UserParts& own,
                       const models::TensorSplit& tensor) {
  nn::Loss loss = loss_of(recipe, own);
  if (tensor.ranks.alone() || !splits_scores(recipe)) return loss;
  const models::TransformerConfig config = transformer_config(recipe);
  const auto of_whole = loss.value;
  const std::int64_t rows = models::table_rows(config);
  const auto of_own =
      tensor_parallel::vocabulary_cross_entropy({tensor.ranks.of("loss"), config.vocabulary, rows})
          .value;
  // With many padded rows the first rank may own all tokens. Its own scores then look like those of
  // the whole vocabulary, which only validation has, without a gradient.
  const bool owns_all =
      tensor.ranks.rank() == 0 && tensor.ranks.own(rows).size >= config.vocabulary;
  loss.value = [of_whole, of_own, owns_all, vocabulary = config.vocabulary](
                   const at::Tensor& scores, const at::Tensor& target) {
    const bool is_whole = scores.size(-1) == vocabulary && !(owns_all && scores.requires_grad());
    return is_whole ? of_whole(scores, target) : of_own(scores, target);
  };
  return loss;
}

namespace {

void check_classes(const recipe::Recipe& recipe, const OpenedData& data) {
  const std::int64_t classes = recipe.model.classes;
  if (classes > 0 && classes < data.classes)
    throw UsageError(text("'classes' in [model] is ", classes, ", the data of '", recipe.data.name,
                          "' have ", data.classes),
                     {.hint = text("Set classes = ", data.classes, ".")});
}

}  // namespace

namespace {

// How the user gets data for validation, where the data set reads 'validation' or not.
std::string hint_for_validation(const recipe::Recipe& recipe, const OpenedData& data,
                                const UserParts& own) {
  const DataSet set = find_data_set(recipe.data.name, own);
  if (set.reads("validation"))
    return text("'validation' in [data] is ", recipe.data.validation, " of ",
                data.training.dataset->size(), " examples. Set a larger share, or name other ",
                "data.");
  return set.paths.empty() ? text("'", set.name,
                                  "' has examples for training alone: train on a data set that has "
                                  "others for validation.")
                           : text("'", set.name,
                                  "' takes its validation examples from its files: name other "
                                  "data with --",
                                  join(set.paths, ", --"), ".");
}

}  // namespace

void check_examples(const recipe::Recipe& recipe, const OpenedData& data, const UserParts& own) {
  const auto& train = recipe.train;
  const std::size_t count = data.training.indices.size();
  if (count == 0) throw UsageError("there are no examples to train on");
  if (train.drop_last && static_cast<std::int64_t>(count) < train.batch)
    throw UsageError(
        text("there are ", count, " examples to train on, fewer than one batch of ", train.batch),
        {.hint = "Make 'batch' in [train] smaller, or set drop_last = false."});
  check_classes(recipe, data);
  if (!data.validation.indices.empty()) return;
  const auto refuse = [&](const char* what, const char* without) {
    throw UsageError(
        text(what, " needs the validation metric, and no data are kept for validation"),
        {.hint = find_data_set(recipe.data.name, own).reads("validation")
                     ? text("Give 'validation' in [data] a share above 0, or set ", without, ".")
                     : text("Set ", without, ".")});
  };
  if (recipe.optimizer.plateau) refuse("'plateau' in [optimizer]", "plateau = false");
  if (train.patience > 0) refuse("'patience' in [train]", "patience = 0");
  if (train.keep_best > 1) refuse("'keep_best' in [train]", "keep_best = 1");
}

std::string metric_of(const recipe::Recipe& recipe, const UserParts& own) {
  const std::string& name = recipe.train.metric;
  return choose("metric", name.empty() ? find_data_set(recipe.data.name, own).metric : name,
                metrics(own))
      .name;
}

namespace {

struct OpenedTask {
  Task task;  // without loaders
  OpenedData data;
  recipe::Recipe recipe;  // with the data that were found
};

OpenedTask open_task(const recipe::Recipe& asked, Progress& progress, const UserParts& own,
                     const SynthesisProgress& on_synthesized = {}) {
  const auto problems = problems_of_data(asked, own);
  if (!problems.empty()) throw UsageError(problems[0]);
  recipe::Recipe recipe = asked;
  recipe.data = find_data(asked, progress, own, on_synthesized);
  const DataSet set = find_data_set(recipe.data.name, own);
  const Metric metric = choose("metric", metric_of(recipe, own), metrics(own));
  OpenedTask opened;
  Task& task = opened.task;
  task.loss = loss_of(recipe, own);
  task.metric_name = metric.name;
  task.metric = metric.tally;
  task.picture = draw;
  task.data = recipe.data;
  task.synthetic = synthetic_data_of(recipe, own).value_or("");
  opened.data = set.open(recipe);
  for (const std::string& note : opened.data.notes) progress.note(note);
  opened.recipe = std::move(recipe);
  return opened;
}

}  // namespace

Task make_task(const recipe::Recipe& recipe, Progress& progress, const UserParts& own,
               const SynthesisProgress& on_synthesized) {
  OpenedTask opened = open_task(recipe, progress, own, on_synthesized);
  check_examples(opened.recipe, opened.data, own);
  opened.task.training = training_loader(opened.recipe, find_data_set(opened.recipe.data.name, own),
                                         std::move(opened.data.training));
  opened.task.validation = validation_loader(opened.recipe, std::move(opened.data.validation));
  return std::move(opened.task);
}

Task make_judging_task(const recipe::Recipe& recipe, Progress& progress, const UserParts& own,
                       Judged judged) {
  OpenedTask opened = open_task(recipe, progress, own);
  const OpenedData& data = opened.data;
  check_classes(opened.recipe, data);
  const bool one_part =
      data.validation.indices.empty() || data.validation.dataset == data.training.dataset;
  Examples examples = data.validation;
  if (judged == Judged::Everything && data.everything.dataset)
    examples = data.everything;
  else if (judged == Judged::Everything && one_part)
    examples = all_of(data.training.dataset);
  if (examples.indices.empty())
    throw UsageError(text("the data set '", recipe.data.name, "' has no data for validation"),
                     {.hint = hint_for_validation(recipe, data, own)});
  opened.task.validation = validation_loader(opened.recipe, std::move(examples));
  return std::move(opened.task);
}

}  // namespace trestle::train
