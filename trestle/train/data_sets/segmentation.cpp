#include "trestle/data/segmentation.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/split.h"
#include "trestle/train/data_sets/data_sets.h"
#include "trestle/train/progress/progress.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

constexpr int default_classes = 2;

int classes_of(const recipe::Recipe& recipe) {
  return recipe.model.classes > 0
             ? static_cast<int>(std::min<std::int64_t>(recipe.model.classes, 1 << 30))
             : default_classes;
}

std::vector<data::MaskValue> ignored_by(const recipe::Recipe& recipe) {
  std::vector<data::MaskValue> values;
  for (const std::string& value : recipe.data.mask_ignore)
    values.push_back(data::parse_mask_value(value));
  return values;
}

data::SegmentationOptions segmentation_options(const recipe::Recipe& recipe,
                                               const std::string& suffix) {
  data::SegmentationOptions options{.picture = picture_options(recipe),
                                    .mask_suffix = suffix,
                                    .mask_values = {},
                                    .classes = classes_of(recipe),
                                    .ignored = ignored_by(recipe)};
  for (const std::string& value : recipe.data.mask_values)
    options.mask_values.push_back(data::parse_mask_value(value));
  return options;
}

std::vector<fs::path> masks_of(const std::vector<data::ImagePair>& pairs) {
  std::vector<fs::path> masks;
  for (const data::ImagePair& pair : pairs) masks.push_back(pair.mask);
  return masks;
}

std::vector<std::string> words_of(const std::vector<data::MaskValue>& values) {
  std::vector<std::string> words;
  for (const data::MaskValue value : values) words.push_back(data::to_string(value));
  return words;
}

// Takes the mask value of each class from the recipe, or else finds the values in all masks.
recipe::Recipe::Data fill_in_segmentation(const recipe::Recipe& recipe, Progress& progress) {
  recipe::Recipe::Data data = recipe.data;
  if (!data.mask_values.empty()) {
    progress.note("classes   " +
                  data::describe_classes(segmentation_options(recipe, data.mask_suffix).mask_values,
                                         {}, ignored_by(recipe)));
    return data;
  }
  const data::PairListing listing = data::list_pairs(data.images, data.masks, data.mask_suffix);
  const data::MaskCensus census =
      data::count_mask_values(masks_of(listing.pairs), static_cast<int>(data.workers));
  if (!census.problems.empty())
    throw FormatError(census.problems.begin()->second,
                      {.hint = "`trestle data check` lists all such files."});
  const auto ignored = ignored_by(recipe);
  const auto values = data::find_mask_values(census, classes_of(recipe), ignored);
  progress.note("classes   " + data::describe_classes(values, census, ignored));
  data.mask_values = words_of(values);
  return data;
}

OpenedData open_segmentation(const recipe::Recipe& recipe) {
  return open_pairs(recipe, recipe.data.mask_suffix);
}

// As fill_in_segmentation(), for a check: a mask that cannot be read is added to the report's
// problems and removed from the pairs. Returns nothing if the values do not fit the classes, which
// is added too.
std::optional<recipe::Recipe> with_values(const recipe::Recipe& recipe,
                                          std::vector<data::ImagePair>& pairs,
                                          data::CheckReport& report) {
  recipe::Recipe known = recipe;
  if (!known.data.mask_values.empty()) return known;
  const data::MaskCensus census =
      data::count_mask_values(masks_of(pairs), static_cast<int>(recipe.data.workers));
  for (const auto& [mask, problem] : census.problems) report.problems.push_back(problem);
  std::erase_if(pairs, [&](const auto& pair) { return census.problems.contains(pair.mask); });
  try {
    const auto ignored = ignored_by(recipe);
    const auto values = data::find_mask_values(census, classes_of(recipe), ignored);
    report.notes.push_back("classes: " + data::describe_classes(values, census, ignored));
    known.data.mask_values = words_of(values);
    return known;
  } catch (const UsageError& error) {
    report.problems.emplace_back(error.what());
    return std::nullopt;
  }
}

// Reads every image, and the masks only if their values are known.
void check_files(const recipe::Recipe& recipe, const std::string& suffix,
                 const std::optional<recipe::Recipe>& known, std::vector<data::ImagePair> pairs,
                 data::CheckReport& report, const data::CheckProgress& progress) {
  if (known) {
    const data::SegmentationDataset dataset(std::move(pairs), segmentation_options(*known, suffix));
    data::check_examples(dataset, 0, report, progress);
    return;
  }
  const data::SegmentationDataset dataset(std::move(pairs), {.picture = picture_options(recipe)});
  data::check_examples(dataset, 0, report, progress, data::Part::Input);
}

data::CheckReport check_segmentation(const recipe::Recipe& recipe,
                                     const data::CheckProgress& progress) {
  return check_pairs(recipe, recipe.data.mask_suffix, MaskValues::OfTheMasks, progress);
}

}  // namespace

OpenedData divide(const recipe::Recipe& recipe, std::shared_ptr<const data::Dataset> dataset) {
  data::Split split = data::random_split(dataset->size(), recipe.data.validation,
                                         static_cast<std::uint64_t>(recipe.data.split_seed));
  return {{dataset, std::move(split.train)}, {dataset, std::move(split.validation)}};
}

OpenedData open_pairs(const recipe::Recipe& recipe, const std::string& suffix) {
  const data::SegmentationOptions options = segmentation_options(recipe, suffix);
  OpenedData opened = divide(recipe, std::make_shared<data::SegmentationDataset>(
                                         recipe.data.images, recipe.data.masks, options));
  opened.classes = std::ssize(options.mask_values);
  return opened;
}

data::CheckReport check_pairs(const recipe::Recipe& recipe, const std::string& suffix,
                              MaskValues values, const data::CheckProgress& progress) {
  data::CheckReport report;
  try {
    data::PairListing listing = data::list_pairs(recipe.data.images, recipe.data.masks, suffix);
    report.problems = std::move(listing.problems);
    note_skipped_files(recipe.data.images, report);
    if (recipe.data.masks != recipe.data.images) note_skipped_files(recipe.data.masks, report);
    const auto known = values == MaskValues::OfTheMasks ? with_values(recipe, listing.pairs, report)
                                                        : std::optional(recipe);
    check_files(recipe, suffix, known, std::move(listing.pairs), report, progress);
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
  }
  return report;
}

// Images with a mask for each, in two folders.
DataSet segmentation_set() {
  return {.name = "segmentation",
          .summary = "images with a mask each, in two folders of your own",
          .loss = "cross_entropy+dice",
          .metric = "dice",
          .predicts = Predicts::Mask,
          .paths = {"images", "masks"},
          .keys = picture_keys_and({"mask_suffix", "mask_values", "mask_ignore"}),
          .picture = picture_options,
          .open = open_segmentation,
          .fill_in = fill_in_segmentation,
          .check = check_segmentation};
}

}  // namespace trestle::train
