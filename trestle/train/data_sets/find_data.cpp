#include "trestle/train/data_sets/find_data.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/synthetic/synthetic_folder.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace fs = std::filesystem;

void throw_synthesis_stopped(std::int64_t made, std::int64_t all) {
  throw StateError(
      text("stopped synthesizing data after ", made, " of ", all, " examples: nothing was kept"));
}

fs::path synthetic_name(const fs::path& folder) {
  const std::string name = (folder.has_filename() ? folder : folder.parent_path()).string();
  constexpr const char* ending = "-synthetic";
  return name.ends_with(ending) ? name : name + ending;
}

namespace {

// Refuses synthetic data other than those that the recipe describes.
void check_made(const StandIn& stand_in) {
  const auto made = data::synthetic_data_in(stand_in.wanted.out);
  if (made == stand_in.what) return;
  const std::string folder = stand_in.wanted.out.string();
  throw UsageError(text("the recipe sets synthetic data (", stand_in.what, "), but the folder has ",
                        made ? "other synthetic data: " + *made : "real data"),
                   {.file = folder,
                    .hint = made ? text("Remove the folder ", folder,
                                        ", or set 'synthesize' in [data] to these.")
                                 : "Rename the folder, or name it in [data]."});
}

void make_data(const DataSet& set, const StandIn& stand_in, const std::string& missing,
               Progress& progress, const SynthesisProgress& on_synthesized) {
  progress.note(text("data      ", missing, " is missing: synthesizing data in ",
                     stand_in.wanted.out.string(), " (", stand_in.what, "; synthesize in [data])"));
  Synthesis wanted = stand_in.wanted;
  wanted.progress = [&](std::int64_t done, std::int64_t all) {
    progress.synthesizing_data(done, all);
    if (on_synthesized && !on_synthesized(done, all)) throw_synthesis_stopped(done, all);
  };
  try {
    set.synthesize(wanted);
  } catch (const UsageError&) {
    // Another process has synthesized them meanwhile.
    if (!data::synthetic_data_in(stand_in.wanted.out)) throw;
  }
}

// Synthesizes nothing if `progress` is null.
recipe::Recipe::Data real_or_synthetic(const DataSet& set, const recipe::Recipe& recipe,
                                       Progress* progress,
                                       const SynthesisProgress& on_synthesized) {
  const std::vector<fs::path> paths = data_paths(set, recipe);
  const bool there = std::any_of(paths.begin(), paths.end(),
                                 [](const fs::path& path) { return fs::exists(path); });
  if (there || recipe.data.synthesize == 0) return recipe.data;
  if (!set.stand_in)
    throw UsageError(
        text("'synthesize' in [data]: there are no synthetic examples of '", set.name, "'"),
        {.hint = "Leave it out, and give the folders of your data."});
  const StandIn stand_in = set.stand_in(recipe);
  if (!fs::exists(stand_in.wanted.out)) {
    if (progress == nullptr) return recipe.data;
    make_data(set, stand_in, paths[0].string(), *progress, on_synthesized);
  }
  check_made(stand_in);
  return stand_in.data;
}

}  // namespace

recipe::Recipe::Data find_data(const recipe::Recipe& recipe, Progress& progress,
                               const UserParts& own, const SynthesisProgress& on_synthesized) {
  const DataSet set = find_data_set(recipe.data.name, own);
  recipe::Recipe found = recipe;
  found.data = real_or_synthetic(set, recipe, &progress, on_synthesized);
  return set.fill_in ? set.fill_in(found, progress) : found.data;
}

recipe::Recipe::Data data_that_are_there(const recipe::Recipe& recipe, const UserParts& own) {
  const DataSet set = find_data_set(recipe.data.name, own);
  recipe::Recipe found = recipe;
  found.data = real_or_synthetic(set, recipe, nullptr, {});
  const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
  return set.fill_in ? set.fill_in(found, *silent) : found.data;
}

std::optional<std::string> synthetic_data_of(const recipe::Recipe& recipe, const UserParts& own) {
  for (const fs::path& path : data_paths(find_data_set(recipe.data.name, own), recipe))
    if (data::synthetic_data_in(path)) return path.string();
  return std::nullopt;
}

}  // namespace trestle::train
