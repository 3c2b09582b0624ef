#include "trestle/train/task.h"

#include <filesystem>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/data/carvana.h"
#include "trestle/data/mnist.h"
#include "trestle/data/split.h"
#include "trestle/data/synthetic/synthesize.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

void move_into_place(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error)
    throw FileError(text("cannot be moved to ", to.string(), ": ", error.message()),
                    {.file = from.string()});
}

// Folders are moved into place when they are complete, so that an interrupted
// synthesis is no smaller data set.
void synthesize_missing_carvana(const recipe::Recipe& recipe, Progress& progress) {
  const fs::path images = recipe.data.images;
  const fs::path masks = recipe.data.masks;
  if (recipe.data.synthesize == 0 || fs::exists(images) || fs::exists(masks)) return;
  if (images.filename() != "train_hq" || masks.filename() != "train_masks" ||
      images.parent_path() != masks.parent_path())
    throw UsageError(text(
        "synthesize makes the folders train_hq and train_masks side by side; the recipe names ",
        images.string(), " and ", masks.string()));
  progress.note(text("data      ", images.string(), " is missing: making ",
                     format_count(recipe.data.synthesize), " look-alikes of ",
                     recipe.data.synthesize_width, " x ", recipe.data.synthesize_height,
                     " pixels (synthesize in [data])"));
  const fs::path making = images.parent_path() / ".making";
  fs::remove_all(making);
  data::SynthesizeCarvanaOptions options;
  options.width = static_cast<int>(recipe.data.synthesize_width);
  options.height = static_cast<int>(recipe.data.synthesize_height);
  data::synthesize_carvana(making, recipe.data.synthesize, options);
  move_into_place(making / "train_masks", masks);
  move_into_place(making / "train_hq", images);
  fs::remove_all(making);
}

void synthesize_missing_mnist(const recipe::Recipe& recipe, Progress& progress) {
  const fs::path folder = recipe.data.folder;
  if (recipe.data.synthesize == 0 || fs::exists(folder)) return;
  progress.note(text("data      ", folder.string(), " is missing: making ",
                     format_count(recipe.data.synthesize),
                     " look-alike digits (synthesize in [data])"));
  fs::path making = folder;
  making += ".making";
  fs::remove_all(making);
  data::synthesize_mnist(making, recipe.data.synthesize);
  move_into_place(making, folder);
}

std::unique_ptr<data::Loader> training_loader(const recipe::Recipe& recipe,
                                              std::shared_ptr<const data::Dataset> data,
                                              std::vector<std::int64_t> indices) {
  data::LoaderOptions options;
  options.batch = recipe.train.batch;
  options.order = data::Order::Shuffled;
  options.last_batch = recipe.train.drop_last ? data::LastBatch::Drop : data::LastBatch::Keep;
  options.seed = static_cast<std::uint64_t>(recipe.train.seed);
  options.workers = static_cast<int>(recipe.data.workers);
  if (recipe.train.drop_last && static_cast<std::int64_t>(indices.size()) < recipe.train.batch)
    throw UsageError(text("there are ", indices.size(),
                          " examples to train on, fewer than one batch of ", recipe.train.batch),
                     {.hint = "Make 'batch' in [train] smaller, or set drop_last = false."});
  return std::make_unique<data::Loader>(std::move(data), std::move(indices), options);
}

std::unique_ptr<data::Loader> validation_loader(const recipe::Recipe& recipe,
                                                std::shared_ptr<const data::Dataset> data,
                                                std::vector<std::int64_t> indices) {
  if (indices.empty()) return nullptr;
  data::LoaderOptions options;
  options.batch = recipe.train.batch;
  options.workers = static_cast<int>(recipe.data.workers);
  return std::make_unique<data::Loader>(std::move(data), std::move(indices), options);
}

std::vector<std::int64_t> all_of(const data::Dataset& data) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(data.size()));
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(i);
  return indices;
}

void open_carvana(const recipe::Recipe& recipe, Progress& progress, Task& task) {
  synthesize_missing_carvana(recipe, progress);
  data::CarvanaOptions options;
  options.scale = recipe.data.scale;
  if (recipe.model.classes > 0) options.classes = static_cast<int>(recipe.model.classes);
  const auto data =
      std::make_shared<data::CarvanaDataset>(recipe.data.images, recipe.data.masks, options);
  data::Split split = data::random_split(data->size(), recipe.data.validation,
                                         static_cast<std::uint64_t>(recipe.data.split_seed));
  task.training = training_loader(recipe, data, std::move(split.train));
  task.validation = validation_loader(recipe, data, std::move(split.validation));
  task.picture = [](const data::Batch& batch, const at::Tensor& output, const PictureText& words) {
    return draw_masks(batch.inputs, batch.targets, output, words);
  };
}

void open_mnist(const recipe::Recipe& recipe, Progress& progress, Task& task) {
  synthesize_missing_mnist(recipe, progress);
  const auto train =
      std::make_shared<data::MnistDataset>(recipe.data.folder, data::MnistPart::Train);
  const auto test = std::make_shared<data::MnistDataset>(recipe.data.folder, data::MnistPart::Test);
  task.training = training_loader(recipe, train, all_of(*train));
  task.validation = validation_loader(recipe, test, all_of(*test));
  task.picture = [](const data::Batch& batch, const at::Tensor& output, const PictureText& words) {
    return draw_classes(batch.inputs, batch.targets, output, words);
  };
}

}  // namespace

nn::Loss loss_of(const recipe::Recipe& recipe) {
  if (!recipe.train.loss.empty()) return nn::make_loss(recipe.train.loss);
  return nn::make_loss(recipe.data.name == "carvana" ? "cross_entropy+dice" : "cross_entropy");
}

Task make_task(const recipe::Recipe& recipe, Progress& progress) {
  Task task;
  task.loss = loss_of(recipe);
  task.metric_name = recipe.train.metric;
  if (task.metric_name.empty())
    task.metric_name = recipe.data.name == "carvana" ? "dice" : "accuracy";
  if (task.metric_name == "dice")
    task.metric = [](const at::Tensor& output, const at::Tensor& target) {
      return nn::dice_tally(output, target);
    };
  else
    task.metric = nn::accuracy_tally;
  if (recipe.data.name == "carvana")
    open_carvana(recipe, progress, task);
  else
    open_mnist(recipe, progress, task);
  return task;
}

}  // namespace trestle::train
