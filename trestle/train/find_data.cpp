#include "trestle/train/find_data.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/synthetic/synthetic_folder.h"
#include "trestle/train/data_set.h"
#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace fs = std::filesystem;

void throw_stopped_making(std::int64_t made, std::int64_t all) {
  throw StateError(text("stopped while synthetic data were made, after ", made, " of ", all,
                        " examples: nothing of them was kept"));
}

fs::path synthetic_name(const fs::path& folder) {
  const std::string name = (folder.has_filename() ? folder : folder.parent_path()).string();
  constexpr const char* ending = "-synthetic";
  return name.ends_with(ending) ? name : name + ending;
}

namespace {

// A run that found other synthetic data than its recipe describes would not be the run that was
// asked for.
void check_made(const StandIn& stand_in) {
  const auto made = data::synthetic_data_in(stand_in.wanted.out);
  if (made == stand_in.what) return;
  const std::string folder = stand_in.wanted.out.string();
  throw UsageError(text("the recipe asks for synthetic data (", stand_in.what, "), and there are ",
                        made ? "others here already: " + *made : "real ones here"),
                   {.file = folder,
                    .hint = made ? text("Remove the folder ", folder,
                                        ", or let 'synthesize' in [data] ask for these.")
                                 : "Rename the folder, or let the recipe name it as its data."});
}

void make_data(const DataSet& set, const StandIn& stand_in, const std::string& missing,
               Progress& progress, const MakingData& making) {
  progress.note(text("data      ", missing, " is missing: making synthetic data in ",
                     stand_in.wanted.out.string(), " (", stand_in.what, "; synthesize in [data])"));
  Synthesis wanted = stand_in.wanted;
  wanted.progress = [&](std::int64_t done, std::int64_t all) {
    progress.making_data(done, all);
    if (making && !making(done, all)) throw_stopped_making(done, all);
  };
  try {
    set.synthesize(wanted);
  } catch (const UsageError&) {
    // Made by another process since we looked.
    if (!data::synthetic_data_in(stand_in.wanted.out)) throw;
  }
}

// Nothing is made where `progress` is null.
recipe::Recipe::Data real_or_synthetic(const DataSet& set, const recipe::Recipe& recipe,
                                       Progress* progress, const MakingData& making) {
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
    make_data(set, stand_in, paths[0].string(), *progress, making);
  }
  check_made(stand_in);
  return stand_in.data;
}

}  // namespace

recipe::Recipe::Data find_data(const recipe::Recipe& recipe, Progress& progress,
                               const Additions& own, const MakingData& making) {
  const DataSet set = find_data_set(recipe.data.name, own);
  recipe::Recipe found = recipe;
  found.data = real_or_synthetic(set, recipe, &progress, making);
  return set.fill_in ? set.fill_in(found, progress) : found.data;
}

recipe::Recipe::Data data_that_are_there(const recipe::Recipe& recipe, const Additions& own) {
  const DataSet set = find_data_set(recipe.data.name, own);
  recipe::Recipe found = recipe;
  found.data = real_or_synthetic(set, recipe, nullptr, {});
  const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
  return set.fill_in ? set.fill_in(found, *silent) : found.data;
}

std::optional<std::string> synthetic_data_of(const recipe::Recipe& recipe, const Additions& own) {
  for (const fs::path& path : data_paths(find_data_set(recipe.data.name, own), recipe))
    if (data::synthetic_data_in(path)) return path.string();
  return std::nullopt;
}

}  // namespace trestle::train
