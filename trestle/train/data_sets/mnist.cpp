#include "trestle/data/mnist.h"

#include <filesystem>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/train/data_sets/data_sets.h"
#include "trestle/train/progress.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

// The test part validates.
OpenedData open(const recipe::Recipe& recipe) {
  const fs::path folder = recipe.data.folder;
  return {all_of(std::make_shared<data::MnistDataset>(folder, data::MnistPart::Train)),
          all_of(std::make_shared<data::MnistDataset>(folder, data::MnistPart::Test))};
}

std::string synthesize(const Synthesis& wanted) {
  if (wanted.width != 0 || wanted.height != 0)
    throw UsageError("digits are 28 x 28 pixels, they take no other width or height");
  data::SynthesizeMnistOptions options;
  options.seed = wanted.seed;
  options.progress = wanted.progress;
  data::synthesize_mnist(wanted.out, wanted.count, options);
  return text(wanted.count, " digits, and a sixth as many to test with, to ", wanted.out.string());
}

void synthesize_missing(const recipe::Recipe& recipe, Progress& progress) {
  const fs::path folder = recipe.data.folder;
  if (fs::exists(folder)) return;
  fs::path beside = folder.has_filename() ? folder : folder.parent_path();
  beside += ".making";
  const MakingFolder making(beside);
  if (fs::exists(folder)) return;  // made by another process meanwhile
  progress.note(text("data      ", folder.string(), " is missing: making ",
                     format_count(recipe.data.synthesize),
                     " synthetic digits (synthesize in [data])"));
  synthesize({.out = making.content(), .count = recipe.data.synthesize});
  move_into_place(making.content(), folder);
}

data::CheckReport check(const recipe::Recipe& recipe, const data::CheckProgress&) {
  return data::check_mnist(recipe.data.folder);
}

}  // namespace

DataSet mnist_set() {
  return {.name = "mnist",
          .summary = "handwritten digits, in the four IDX files of MNIST",
          .loss = "cross_entropy",
          .metric = "accuracy",
          .predicts = Predicts::Class,
          .paths = {"folder"},
          .open = open,
          .synthesize = synthesize,
          .synthesize_missing = synthesize_missing,
          .check = check};
}

}  // namespace trestle::train
