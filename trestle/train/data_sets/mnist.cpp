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

Examples part_of(const recipe::Recipe& recipe, data::MnistPart part) {
  const DataSet& set = find_data_set(recipe.data.name);
  const std::filesystem::path folder = data_paths(set, recipe).at(0);
  if (folder == set.usual_place && !std::filesystem::exists(folder))
    throw UsageError(text("'", set.name, "' is not here"),
                     {.file = folder.string(),
                      .hint = "Install it (Debian, Ubuntu: apt-get install dataset-fashion-mnist), "
                              "or give its 'folder'."});
  return all_of(std::make_shared<data::MnistDataset>(folder, part));
}

// The test part validates.
OpenedData open_mnist(const recipe::Recipe& recipe) {
  return {part_of(recipe, data::MnistPart::Train), part_of(recipe, data::MnistPart::Test),
          data::mnist_classes};
}

std::vector<std::int64_t> mnist_input(const recipe::Recipe&) { return {1, 28, 28}; }

data::PictureOptions picture(const recipe::Recipe&) {
  return {.width = 28, .height = 28, .channels = 1};
}

std::vector<std::string> digits(const recipe::Recipe&) {
  return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
}

std::vector<std::string> clothes(const recipe::Recipe&) {
  return {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
          "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
}

data::SynthesizeMnistOptions mnist_options(const Synthesis& wanted) {
  data::SynthesizeMnistOptions options;
  options.seed = wanted.seed;
  options.progress = wanted.progress;
  return options;
}

std::string synthesize_digits(const Synthesis& wanted) {
  if (wanted.width != 0 || wanted.height != 0)
    throw UsageError("digits are 28 x 28 pixels, they take no other width or height");
  data::synthesize_mnist(wanted.out, wanted.count, mnist_options(wanted));
  return text(counted(wanted.count, "digit"), ", and a sixth as many to test with, to ",
              wanted.out.string());
}

StandIn mnist_stand_in(const recipe::Recipe& recipe) {
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
      check_opened(recipe, {part_of(recipe, part), {}, data::mnist_classes}, report, progress);
    } catch (const Error& error) {
      // A missing folder misses both parts.
      if (std::ranges::find(report.problems, error.what()) == report.problems.end())
        report.problems.emplace_back(error.what());
    }
  }
  return report;
}

}  // namespace

DataSet mnist_set() {
  return {.name = "mnist",
          .summary = "handwritten digits, in the four IDX files of MNIST",
          .loss = "cross_entropy",
          .metric = "accuracy",
          .predicts = Predicts::Class,
          .paths = {"folder"},
          .usual_input = mnist_input,
          .picture = picture,
          .class_names = digits,
          .open = open_mnist,
          .synthesize = synthesize_digits,
          .stand_in = mnist_stand_in,
          .check = check_mnist};
}

DataSet fashion_mnist_set() {
  return {.name = "fashion_mnist",
          .summary = "pictures of clothes in MNIST's format; a Debian package has it",
          .loss = "cross_entropy",
          .metric = "accuracy",
          .predicts = Predicts::Class,
          .paths = {"folder"},
          .usual_place = "/usr/share/datasets/fashion-mnist",
          .usual_input = mnist_input,
          .picture = picture,
          .class_names = clothes,
          .open = open_mnist,
          .check = check_mnist};
}

}  // namespace trestle::train
