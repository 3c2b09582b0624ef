#include "trestle/data/volumes.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/augment_volumes.h"
#include "trestle/data/split.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/train/data_sets/data_sets.h"
#include "trestle/train/progress/progress.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

data::Sides patch_of(const recipe::Recipe& recipe) {
  const std::vector<std::int64_t>& patch = recipe.data.patch;
  if (patch.size() == 3) return {patch[0], patch[1], patch[2]};
  throw UsageError(text("volumes need 'patch' in [data]: three sides in voxels, of slices, rows "
                        "and columns; it has ",
                        patch.size()),
                   {.hint = "For example patch = [16, 64, 64]."});
}

std::vector<std::int64_t> whole_numbers(const std::vector<std::string>& words, const char* key) {
  std::vector<std::int64_t> numbers;
  for (const std::string& word : words) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size())
      throw UsageError(text("'", word, "' in '", key, "' is no label of a volume"),
                       {.hint = "Labels are whole numbers, such as 0 or 255."});
    numbers.push_back(number);
  }
  return numbers;
}

void refuse_ignoring_all(const data::VolumeOptions& options) {
  std::vector<std::int64_t> labels = options.label_values;
  for (int id = 0; options.label_values.empty() && id < options.classes; ++id) labels.push_back(id);
  const auto is_ignored = [&](std::int64_t label) {
    return std::ranges::find(options.ignored, label) != options.ignored.end();
  };
  if (!std::ranges::all_of(labels, is_ignored)) return;
  throw UsageError(
      text("'mask_ignore' in [data] lists the labels of all classes: ", join(labels, ", ")),
      {.hint = "No label is left to learn from. Leave out those that are classes."});
}

data::VolumeOptions volume_options(const recipe::Recipe& recipe) {
  data::VolumeOptions options;
  options.normalization = data::parse_volume_normalization(recipe.data.normalize);
  options.label_values = whole_numbers(recipe.data.mask_values, "mask_values");
  options.ignored = whole_numbers(recipe.data.mask_ignore, "mask_ignore");
  constexpr std::int64_t most_classes = 32'767;
  const std::int64_t classes = std::ssize(options.label_values);
  if (classes > 0)
    options.classes = static_cast<int>(classes);
  else if (recipe.model.classes > 0)
    options.classes = static_cast<int>(std::min(recipe.model.classes, most_classes));
  refuse_ignoring_all(options);
  return options;
}

void refuse_variations(const recipe::Recipe& recipe) {
  std::vector<std::string> keys;
  if (recipe.data.flip != "none") keys.emplace_back("flip");
  if (recipe.data.crop != 0) keys.emplace_back("crop");
  if (recipe.data.colour != 0) keys.emplace_back("colour");
  if (keys.empty()) return;
  throw UsageError(text("'", join(keys, "', '"), "' in [data] changes pictures, not volumes"),
                   {.hint = "Leave it out. The keys for volumes are 'flip_axes' and 'intensity'."});
}

std::shared_ptr<data::Volumes> open_files(const recipe::Recipe& recipe) {
  const data::PairListing listing =
      data::list_volume_pairs(recipe.data.images, recipe.data.masks, recipe.data.mask_suffix);
  if (!listing.problems.empty())
    throw UsageError(text(listing.problems[0], listing.problems.size() > 1 ? ", and more" : ""),
                     {.hint = "Run `trestle data check` to list all of them."});
  return std::make_shared<data::Volumes>(listing.pairs, volume_options(recipe));
}

// The spacing in the resolved recipe must still be that of the data.
void check_spacing(const recipe::Recipe& recipe, const data::Volumes& volumes) {
  if (recipe.data.spacing == any_spacing) return;
  const std::string spacing = data::shared_spacing(volumes);
  if (recipe.data.spacing.empty() || data::is_spacing(recipe.data.spacing, volumes.info(0))) return;
  throw UsageError(
      text("'spacing' in [data] is ", recipe.data.spacing, ", the volumes have ", spacing),
      {.file = recipe.data.images,
       .hint = "Leave 'spacing' out to have it read from the files, or resample the "
               "volumes."});
}

OpenedData open_volumes(const recipe::Recipe& recipe) {
  refuse_variations(recipe);
  data::parse_axes(recipe.data.flip_axes);
  const data::PatchOptions patches{.patch = patch_of(recipe),
                                   .per_volume = recipe.data.patches_per_volume,
                                   .foreground = recipe.data.foreground};
  const auto volumes = open_files(recipe);
  check_spacing(recipe, *volumes);
  // Whole volumes are divided: two patches of one volume are no independent examples.
  data::Split split = data::random_split(volumes->size(), recipe.data.validation,
                                         static_cast<std::uint64_t>(recipe.data.split_seed));
  std::vector<std::int64_t> all(static_cast<std::size_t>(volumes->size()));
  std::iota(all.begin(), all.end(), 0);
  OpenedData opened;
  opened.training =
      all_of(std::make_shared<data::VolumePatches>(volumes, std::move(split.train), patches));
  opened.validation = all_of(
      std::make_shared<data::VolumeWindows>(volumes, std::move(split.validation), patches.patch));
  opened.everything =
      all_of(std::make_shared<data::VolumeWindows>(volumes, std::move(all), patches.patch));
  opened.classes =
      volumes->options().label_values.empty() ? 0 : std::ssize(volumes->options().label_values);
  return opened;
}

// Reads the spacing, so that a resumed run and `predict` can compare it.
recipe::Recipe::Data fill_in_volumes(const recipe::Recipe& recipe, Progress& progress) {
  recipe::Recipe::Data data = recipe.data;
  const auto volumes = open_files(recipe);
  if (data.spacing.empty()) data.spacing = data::shared_spacing(*volumes);
  const std::string count = counted(volumes->size(), "volume");
  progress.note(data.spacing == any_spacing
                    ? text("spacing   any, in ", count,
                           ": the model sees voxels of different lengths as equal")
                    : text("spacing   ", data.spacing, " (slices, rows, columns) in ", count,
                           "; the model sees voxels, nothing is resampled"));
  return data;
}

data::CheckReport check_volumes(const recipe::Recipe& recipe, const data::CheckProgress& progress) {
  data::CheckReport report;
  try {
    data::PairListing listing =
        data::list_volume_pairs(recipe.data.images, recipe.data.masks, recipe.data.mask_suffix);
    report.problems = std::move(listing.problems);
    const auto all = std::ssize(listing.pairs);
    std::vector<data::ImagePair> good;
    for (const data::ImagePair& pair : listing.pairs) {
      try {
        const data::Volumes one({pair}, volume_options(recipe));
        const auto loaded = one.load(0);
        report.targets += loaded->mask.numel();
        report.ignored += loaded->mask.lt(0).sum().item<std::int64_t>();
        const data::VolumeInfo& info = one.info(0);
        ++report.sizes[text(info.channels, " x ", join(info.sides, " x "), " voxels of ",
                            data::spacing_in_words(info))];
        ++report.count;
        good.push_back(pair);
      } catch (const Error& error) {
        report.problems.emplace_back(error.what());
      }
      if (progress) progress(report.count + std::ssize(report.problems), all);
    }
    if (good.empty()) return report;
    const data::Volumes together(good, volume_options(recipe));
    check_spacing(recipe, together);
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
  }
  return report;
}

std::vector<std::int64_t> usual_volume_input(const recipe::Recipe& recipe) {
  const data::Sides patch = patch_of(recipe);
  return {std::max<std::int64_t>(recipe.model.channels, 1), patch[0], patch[1], patch[2]};
}

VolumeReading volume_reading(const recipe::Recipe& recipe) {
  return {.normalization = data::parse_volume_normalization(recipe.data.normalize),
          .label_values = whole_numbers(recipe.data.mask_values, "mask_values"),
          .spacing = recipe.data.spacing,
          .windows = {.window = patch_of(recipe),
                      .overlap = recipe.data.overlap,
                      .blend = data::parse_blend(recipe.data.blend),
                      .batch = recipe.train.batch}};
}

data::SynthesizeVolumesOptions synthesis_options(const Synthesis& wanted) {
  data::SynthesizeVolumesOptions options;
  if (wanted.depth != 0) options.depth = wanted.depth;
  if (wanted.width != 0) options.width = wanted.width;
  if (wanted.height != 0) options.height = wanted.height;
  options.seed = wanted.seed;
  options.progress = wanted.progress;
  return options;
}

std::string synthesize_volumes(const Synthesis& wanted) {
  data::synthesize_volumes(wanted.out, wanted.count, synthesis_options(wanted));
  return text(counted(wanted.count, "volume"), " to ", (wanted.out / "volumes").string(), " and ",
              plural(wanted.count, "its labels", "their labels"), " to ",
              (wanted.out / "labels").string());
}

StandIn stand_in_for_volumes(const recipe::Recipe& recipe) {
  const fs::path images = recipe.data.images;
  // "data/tubes" for data/tubes/volumes; any other folder keeps its own name.
  const bool usual = images.filename() == "volumes" && images.has_parent_path();
  const Synthesis wanted{.out = synthetic_name(usual ? images.parent_path() : images),
                         .count = recipe.data.synthesize,
                         .width = static_cast<int>(recipe.data.synthesize_width),
                         .height = static_cast<int>(recipe.data.synthesize_height),
                         .depth = static_cast<int>(recipe.data.synthesize_depth)};
  StandIn made{wanted, data::describe_synthetic_volumes(wanted.count, synthesis_options(wanted)),
               recipe.data};
  made.data.images = (wanted.out / "volumes").string();
  made.data.masks = (wanted.out / "labels").string();
  return made;
}

}  // namespace

// Volumes of scanners with a class for each voxel.
DataSet volumes_set() {
  return {.name = "volumes",
          .summary =
              "volumes (.nii, .nii.gz, .npy) with labels for their voxels, in two folders of "
              "your own",
          .loss = "cross_entropy+dice",
          .metric = "voxel_dice",
          .predicts = Predicts::Mask,
          .paths = {"images", "masks"},
          .keys = {"mask_suffix", "mask_values", "mask_ignore", "patch", "patches_per_volume",
                   "foreground", "normalize", "spacing", "flip_axes", "intensity", "overlap",
                   "blend", "validation", "split_seed", "synthesize_width", "synthesize_height",
                   "synthesize_depth"},
          .usual_input = usual_volume_input,
          .volume = volume_reading,
          .open = open_volumes,
          .fill_in = fill_in_volumes,
          .synthesize = synthesize_volumes,
          .stand_in = stand_in_for_volumes,
          .check = check_volumes};
}

}  // namespace trestle::train
