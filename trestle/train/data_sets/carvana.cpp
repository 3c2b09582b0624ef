#include <algorithm>
#include <filesystem>

#include "trestle/base/counted.h"
#include "trestle/base/text.h"
#include "trestle/data/files/image_pairs.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

// The size of the synthetic images if the recipe would make them, else that of the challenge.
std::vector<std::int64_t> usual_carvana_input(const recipe::Recipe& recipe) {
  const data::PictureOptions options = picture_options(recipe);
  if (options.width > 0) return {options.channels, options.height, options.width};
  const bool made = recipe.data.synthesize > 0;
  const auto side = [&](std::int64_t synthetic, double real) {
    const double pixels = made ? static_cast<double>(synthetic) : real;
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(recipe.data.scale * pixels));
  };
  return {options.channels, side(recipe.data.synthesize_height, 1280),
          side(recipe.data.synthesize_width, 1918)};
}

data::SynthesizeCarvanaOptions carvana_options(const Synthesis& wanted) {
  data::SynthesizeCarvanaOptions options;
  if (wanted.width != 0) options.width = wanted.width;
  if (wanted.height != 0) options.height = wanted.height;
  options.seed = wanted.seed;
  options.progress = wanted.progress;
  return options;
}

std::string synthesize_carvana(const Synthesis& wanted) {
  refuse_depth(wanted, "images");
  data::synthesize_carvana(wanted.out, wanted.count, carvana_options(wanted));
  return text(counted(wanted.count, "image"), " to ", (wanted.out / "train_hq").string(), " and ",
              plural(wanted.count, "its mask", "their masks"), " to ",
              (wanted.out / "train_masks").string());
}

StandIn stand_in_for_carvana(const recipe::Recipe& recipe) {
  const fs::path images = recipe.data.images;
  // "data/cars" for data/cars/train_hq; any other folder keeps its own name.
  const bool usual = images.filename() == "train_hq" && images.has_parent_path();
  const Synthesis wanted{.out = synthetic_name(usual ? images.parent_path() : images),
                         .count = recipe.data.synthesize,
                         .width = static_cast<int>(recipe.data.synthesize_width),
                         .height = static_cast<int>(recipe.data.synthesize_height)};
  StandIn made{wanted, data::describe_synthetic_carvana(wanted.count, carvana_options(wanted)),
               recipe.data};
  made.data.images = (wanted.out / "train_hq").string();
  made.data.masks = (wanted.out / "train_masks").string();
  return made;
}

OpenedData open_carvana(const recipe::Recipe& recipe) {
  return open_pairs(recipe, data::carvana_suffix);
}

data::CheckReport check_carvana(const recipe::Recipe& recipe, const data::CheckProgress& progress) {
  return check_pairs(recipe, data::carvana_suffix, MaskValues::ClassIds, progress);
}

}  // namespace

// Kaggle's Carvana challenge: photos of cars, with a mask for each.
DataSet carvana_set() {
  return {
      .name = "carvana",
      .summary = "photos of cars with a mask each, in the folders of Kaggle's Carvana challenge",
      .loss = "cross_entropy+dice",
      .metric = "dice",
      .predicts = Predicts::Mask,
      .paths = {"images", "masks"},
      .keys =
          picture_keys_and({"mask_values", "mask_ignore", "synthesize_width", "synthesize_height"}),
      .usual_input = usual_carvana_input,
      .picture = picture_options,
      .open = open_carvana,
      .synthesize = synthesize_carvana,
      .stand_in = stand_in_for_carvana,
      .check = check_carvana};
}

}  // namespace trestle::train
