#include "trestle/train/data_sets/data_set.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/listing.h"
#include "trestle/data/files/npy.h"
#include "trestle/data/segmentation.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace {

OpenedData open_own(const data::OpenOwnData& open, const recipe::Recipe& recipe) {
  data::OwnData opened = open({.folder = recipe.data.folder,
                               .images = recipe.data.images,
                               .masks = recipe.data.masks,
                               .picture = picture_options(recipe),
                               .classes = recipe.model.classes,
                               .seed = static_cast<std::uint64_t>(recipe.train.seed)});
  if (!opened.training)
    throw UsageError(text("the data set '", recipe.data.name, "' gives nothing to train on"));
  if (!opened.validation) return divide(recipe, std::move(opened.training));
  return {all_of(std::move(opened.training)), all_of(std::move(opened.validation))};
}

DataSet own_set(const std::string& name, const data::OpenOwnData& open) {
  return {.name = name,
          .summary = "a data set of this program's own",
          .loss = "cross_entropy",
          .metric = "accuracy",
          .predicts = Predicts::Mask,
          .paths = {},
          .keys = picture_keys_and({"folder", "images", "masks"}),
          .picture = picture_options,
          .open = [open](const recipe::Recipe& recipe) { return open_own(open, recipe); }};
}

std::vector<DataSet> with_own(const UserParts& own) {
  std::vector<DataSet> all = data_sets();
  for (const auto& [name, open] : own.data_sets) all.push_back(own_set(name, open));
  return all;
}

}  // namespace

DataSet find_data_set(std::string_view name, const UserParts& own) {
  return choose("data set", name, with_own(own));
}

std::vector<std::string> problems_of_data(const recipe::Recipe& recipe, const UserParts& own) {
  if (recipe.data.name.empty())
    return {text("no data: give 'name' in [data], one of ", data_set_names(own))};
  const DataSet set = find_data_set(recipe.data.name, own);
  const std::vector<std::filesystem::path> paths = data_paths(set, recipe);
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < paths.size(); ++i)
    if (paths[i].empty()) missing.push_back("'" + set.paths[i] + "'");
  if (missing.empty()) return {};
  return {text(set.name, " needs ", join(missing, " and "), " in [data]")};
}

std::string data_set_names(const UserParts& own) {
  std::vector<std::string> names;
  for (const DataSet& set : with_own(own)) names.push_back(set.name);
  return join(names, ", ");
}

namespace {

// Describes the numbers of targets in the report.
void describe_targets(data::CheckReport& report) {
  if (report.ignored == 0) return;
  const std::string words = data::describe_ignored(report.ignored, report.targets);
  if (report.ignored < report.targets)
    report.notes.push_back("targets: " + words);
  else
    report.problems.push_back(words + ": no target is left to learn from");
}

}  // namespace

data::CheckReport check_data(const recipe::Recipe& recipe, const data::CheckProgress& progress,
                             const UserParts& own) {
  const DataSet set = find_data_set(recipe.data.name, own);
  data::CheckReport report;
  try {
    if (set.check)
      report = set.check(recipe, progress);
    else
      check_opened(recipe, set.open(recipe), report, progress);
  } catch (const Error& error) {
    if (set.check) throw;
    report.problems.emplace_back(error.what());
  }
  describe_targets(report);
  return report;
}

void refuse_depth(const Synthesis& wanted, const char* what) {
  if (wanted.depth == 0) return;
  throw UsageError(text(what, " have no depth; only volumes have slices"),
                   {.hint = "Leave it out."});
}

void note_skipped_files(const std::filesystem::path& folder, data::CheckReport& report) {
  if (!std::filesystem::is_directory(folder)) return;
  for (const std::filesystem::path& file : data::skipped_files_of(folder))
    report.notes.push_back(text("skipped ", file.string(), ", which is no picture"));
}

std::int64_t classes_to_check(const recipe::Recipe& recipe, std::int64_t in_data) {
  const std::string& loss = recipe.train.loss;
  const bool of_classes =
      loss.empty() || loss.starts_with("cross_entropy") || loss.starts_with("dice");
  if (!of_classes) return 0;
  return recipe.model.classes > 0 ? recipe.model.classes : in_data;
}

void check_opened(const recipe::Recipe& recipe, const OpenedData& opened, data::CheckReport& report,
                  const data::CheckProgress& progress) {
  const std::int64_t classes = classes_to_check(recipe, opened.classes);
  if (const Examples& some = opened.training; !some.indices.empty()) {
    try {
      const at::Tensor input = some.dataset->get(some.indices[0]).input;
      const std::string problem = problem_of_channels(recipe, input.unsqueeze(0));
      if (!problem.empty() && std::ranges::find(report.problems, problem) == report.problems.end())
        report.problems.push_back(problem);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
      // check_examples() lists it below.
    }
  }
  const data::Dataset* first = opened.training.dataset.get();
  data::check_examples(*first, classes, report, progress);
  const data::Dataset* second = opened.validation.dataset.get();
  if (second != nullptr && second != first)
    data::check_examples(*second, classes, report, progress);
}

std::string problem_of_channels(const recipe::Recipe& recipe, const at::Tensor& inputs) {
  const std::int64_t asked = recipe.model.channels;
  if (asked == 0 || inputs.dim() < 4 || inputs.dim() > 5 || inputs.size(1) == asked) return "";
  // A model of vectors, such as "mlp", has the number of all values of an image.
  if (inputs[0].numel() == asked) return "";
  return text("'channels' in [model] is ", asked, ", the ",
              inputs.dim() == 4 ? "images" : "volumes", " of '", recipe.data.name, "' have ",
              inputs.size(1), "\n  Set channels = ", inputs.size(1), " in [model].");
}

bool DataSet::reads(const std::string& key) const {
  const auto has = [&](const std::vector<std::string>& names) {
    return std::ranges::find(names, key) != names.end();
  };
  return has(paths) || has(keys);
}

data::PictureOptions picture_options(const recipe::Recipe& recipe) {
  return {.scale = recipe.data.scale,
          .width = static_cast<int>(recipe.data.image_width),
          .height = static_cast<int>(recipe.data.image_height),
          .channels = recipe.model.channels > 0 ? static_cast<int>(recipe.model.channels) : 3};
}

std::vector<std::filesystem::path> data_paths(const DataSet& set, const recipe::Recipe& recipe) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& key : set.paths) {
    auto path = std::get<std::string>(recipe::find_field("data." + key)->get(recipe));
    paths.emplace_back(path.empty() ? set.usual_place : path);
  }
  return paths;
}

bool data_are_missing(const DataSet& set, const recipe::Recipe& recipe) {
  return std::ranges::any_of(data_paths(set, recipe), [](const std::filesystem::path& path) {
    std::error_code none;
    return !std::filesystem::exists(data::file_of_array(path.string()), none) ||
           (std::filesystem::is_directory(path, none) && std::filesystem::is_empty(path, none));
  });
}

}  // namespace trestle::train
