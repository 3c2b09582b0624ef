#include "trestle/data/classification.h"

#include <filesystem>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/train/data_sets/data_sets.h"
#include "trestle/train/progress/progress.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

struct Parts {
  fs::path training;
  std::optional<fs::path> validation;  // nothing: a share of the training images
};

// Folders "train" and "val" (or "validation", "valid", "test") hold training and validation images;
// they are not classes.
Parts parts_of(const fs::path& folder) {
  if (fs::is_directory(folder / "train"))
    for (const char* name : {"val", "validation", "valid", "test"})
      if (fs::is_directory(folder / name)) return {folder / "train", folder / name};
  return {folder, std::nullopt};
}

OpenedData open_classification(const recipe::Recipe& recipe) {
  const Parts parts = parts_of(recipe.data.folder);
  const data::PictureOptions options = picture_options(recipe);
  const auto training = std::make_shared<data::ClassificationDataset>(parts.training, options,
                                                                      recipe.data.class_names);
  OpenedData opened;
  if (parts.validation)
    opened = {all_of(training), all_of(std::make_shared<data::ClassificationDataset>(
                                    *parts.validation, options, training->classes()))};
  else
    opened = divide(recipe, training);
  opened.classes = std::ssize(training->classes());
  return opened;
}

data::ClassificationDataset training_part(const recipe::Recipe& recipe) {
  return data::ClassificationDataset(parts_of(recipe.data.folder).training, picture_options(recipe),
                                     recipe.data.class_names);
}

// "0 = cats (120), 1 = dogs (98)"
std::string describe_counts(const data::ClassificationDataset& training) {
  const std::vector<std::int64_t> counts = training.counts();
  std::vector<std::string> words;
  for (std::size_t c = 0; c < counts.size(); ++c)
    words.push_back(text(c, " = ", training.classes()[c], " (", counts[c], ")"));
  return join(words, ", ");
}

recipe::Recipe::Data fill_in_classification(const recipe::Recipe& recipe, Progress& progress) {
  const data::ClassificationDataset training = training_part(recipe);
  progress.note("classes   " + describe_counts(training));
  recipe::Recipe::Data data = recipe.data;
  data.class_names = training.classes();
  return data;
}

void check_part(const recipe::Recipe& recipe, const fs::path& folder,
                std::vector<std::string>& classes, data::CheckReport& report,
                const data::CheckProgress& progress) {
  const data::ClassificationDataset part(
      data::check_class_folders(folder, classes, report.problems), picture_options(recipe));
  if (folder == parts_of(recipe.data.folder).training)
    report.notes.push_back("classes: " + describe_counts(part));
  classes = part.classes();
  for (const std::string& name : classes) note_skipped_files(folder / name, report);
  data::check_examples(part, classes_to_check(recipe, std::ssize(classes)), report, progress);
}

data::CheckReport check_classification(const recipe::Recipe& recipe,
                                       const data::CheckProgress& progress) {
  data::CheckReport report;
  try {
    const Parts parts = parts_of(recipe.data.folder);
    std::vector<std::string> classes = recipe.data.class_names;
    check_part(recipe, parts.training, classes, report, progress);
    if (parts.validation) check_part(recipe, *parts.validation, classes, report, progress);
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
  }
  return report;
}

}  // namespace

// Images in a folder for each class.
DataSet classification_set() {
  return {.name = "classification",
          .summary = "images in a folder for each class, of your own",
          .loss = "cross_entropy",
          .metric = "accuracy",
          .predicts = Predicts::Class,
          .paths = {"folder"},
          .keys = picture_keys_and({"class_names"}),
          .picture = picture_options,
          .class_names = [](const recipe::Recipe& recipe) { return recipe.data.class_names; },
          .open = open_classification,
          .fill_in = fill_in_classification,
          .check = check_classification};
}

}  // namespace trestle::train
