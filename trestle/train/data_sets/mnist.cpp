#include "trestle/data/mnist.h"

#include <algorithm>
#include <filesystem>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace {

Examples mnist_part(const recipe::Recipe& recipe, data::MnistPart part) {
  const DataSet& set = find_data_set(recipe.data.name);
  const std::filesystem::path folder = data_paths(set, recipe).at(0);
  if (folder == set.usual_place && !std::filesystem::exists(folder))
    throw UsageError(text("'", set.name, "' is not here"),
                     {.file = folder.string(),
                      .hint = "Install it (Debian, Ubuntu: apt-get install dataset-fashion-mnist), "
                              "or give its 'folder'."});
  return all_of(std::make_shared<data::MnistDataset>(folder, part));
}

// The test images are the validation data.
OpenedData open_mnist(const recipe::Recipe& recipe) {
  return {mnist_part(recipe, data::MnistPart::Train), mnist_part(recipe, data::MnistPart::Test),
          data::mnist_classes};
}

std::vector<std::int64_t> usual_mnist_input(const recipe::Recipe&) { return {1, 28, 28}; }

data::PictureOptions mnist_picture(const recipe::Recipe&) {
  return {.width = 28, .height = 28, .channels = 1};
}

std::vector<std::string> digit_names(const recipe::Recipe&) {
  return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
}

data::SynthesizeMnistOptions mnist_options(const Synthesis& wanted) {
  data::SynthesizeMnistOptions options;
  options.seed = wanted.seed;
  options.progress = wanted.progress;
  return options;
}

std::string synthesize_mnist(const Synthesis& wanted) {
  refuse_depth(wanted, "digits");
  if (wanted.width != 0 || wanted.height != 0)
    throw UsageError("digits are 28 x 28 pixels, they take no other width or height");
  data::synthesize_mnist(wanted.out, wanted.count, mnist_options(wanted));
  return text(counted(wanted.count, "digit"), " and a sixth of that number for tests, to ",
              wanted.out.string());
}

StandIn stand_in_for_mnist(const recipe::Recipe& recipe) {
  const Synthesis wanted{.out = synthetic_name(recipe.data.folder),
                         .count = recipe.data.synthesize};
  StandIn made{wanted, data::describe_synthetic_mnist(wanted.count, mnist_options(wanted)),
               recipe.data};
  made.data.folder = wanted.out.string();
  return made;
}

data::CheckReport check_mnist(const recipe::Recipe& recipe, const data::CheckProgress& progress) {
  data::CheckReport report;
  for (const auto part : {data::MnistPart::Train, data::MnistPart::Test}) {
    try {
      check_opened(recipe, {mnist_part(recipe, part), {}, data::mnist_classes}, report, progress);
    } catch (const Error& error) {
      // A missing folder gives the same message for both files; report it once.
      if (std::ranges::find(report.problems, error.what()) == report.problems.end())
        report.problems.emplace_back(error.what());
    }
  }
  return report;
}

}  // namespace

// MNIST's handwritten digits (LeCun, Cortes, Burges), in four IDX files.
DataSet mnist_set() {
  return {.name = "mnist",
          .summary = "handwritten digits, in the four IDX files of MNIST",
          .loss = "cross_entropy",
          .metric = "accuracy",
          .predicts = Predicts::Class,
          .paths = {"folder"},
          .usual_input = usual_mnist_input,
          .picture = mnist_picture,
          .class_names = digit_names,
          .open = open_mnist,
          .synthesize = synthesize_mnist,
          .stand_in = stand_in_for_mnist,
          .check = check_mnist};
}

}  // namespace trestle::train
