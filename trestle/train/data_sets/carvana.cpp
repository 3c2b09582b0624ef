#include <filesystem>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/data/carvana.h"
#include "trestle/data/split.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/train/data_sets/data_sets.h"
#include "trestle/train/progress.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

constexpr int default_classes = 2;

int classes_of(const recipe::Recipe& recipe) {
  return recipe.model.classes > 0 ? static_cast<int>(recipe.model.classes) : default_classes;
}

OpenedData open(const recipe::Recipe& recipe) {
  const auto dataset = std::make_shared<data::CarvanaDataset>(
      recipe.data.images, recipe.data.masks,
      data::CarvanaOptions{.scale = recipe.data.scale, .classes = classes_of(recipe)});
  data::Split split = data::random_split(dataset->size(), recipe.data.validation,
                                         static_cast<std::uint64_t>(recipe.data.split_seed));
  return {{dataset, std::move(split.train)}, {dataset, std::move(split.validation)}};
}

std::string synthesize(const Synthesis& wanted) {
  data::SynthesizeCarvanaOptions options;
  if (wanted.width != 0) options.width = wanted.width;
  if (wanted.height != 0) options.height = wanted.height;
  options.seed = wanted.seed;
  options.progress = wanted.progress;
  data::synthesize_carvana(wanted.out, wanted.count, options);
  return text(wanted.count, " images to ", (wanted.out / "train_hq").string(),
              " and their masks to ", (wanted.out / "train_masks").string());
}

void synthesize_missing(const recipe::Recipe& recipe, Progress& progress) {
  const fs::path images = recipe.data.images;
  const fs::path masks = recipe.data.masks;
  if (fs::exists(images) || fs::exists(masks)) return;
  if (images.filename() != "train_hq" || masks.filename() != "train_masks" ||
      images.parent_path() != masks.parent_path())
    throw UsageError(text(
        "synthesize makes the folders train_hq and train_masks side by side; the recipe names ",
        images.string(), " and ", masks.string()));
  const MakingFolder making(images.parent_path() / ".making");
  if (fs::exists(images) || fs::exists(masks)) return;  // made by another process meanwhile
  progress.note(text("data      ", images.string(), " is missing: making ",
                     format_count(recipe.data.synthesize), " synthetic images of ",
                     recipe.data.synthesize_width, " x ", recipe.data.synthesize_height,
                     " pixels (synthesize in [data])"));
  synthesize({.out = making.content(),
              .count = recipe.data.synthesize,
              .width = static_cast<int>(recipe.data.synthesize_width),
              .height = static_cast<int>(recipe.data.synthesize_height)});
  move_into_place(making.content() / "train_masks", masks);
  move_into_place(making.content() / "train_hq", images);
}

data::CheckReport check(const recipe::Recipe& recipe, const data::CheckProgress& progress) {
  return data::check_carvana(recipe.data.images, recipe.data.masks, classes_of(recipe), progress);
}

}  // namespace

DataSet carvana_set() {
  return {
      .name = "carvana",
      .summary = "photos of cars with a mask each, in the folders of Kaggle's Carvana challenge",
      .loss = "cross_entropy+dice",
      .metric = "dice",
      .predicts = Predicts::Mask,
      .paths = {"images", "masks"},
      .open = open,
      .synthesize = synthesize,
      .synthesize_missing = synthesize_missing,
      .check = check};
}

}  // namespace trestle::train
