#include "trestle/train/run_folder/run_paths.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "trestle/base/files.h"
#include "trestle/data/files/npy.h"
#include "trestle/recipe/recipe_fields.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

constexpr std::array keys_of_paths = {"data.images",      "data.masks",        "data.folder",
                                      "data.input_array", "data.target_array", "data.tokens"};

// Nothing if it is unknown or no longer exists.
std::optional<fs::path> started_in(const RunFolder& folder) {
  if (!fs::exists(folder.environment())) return std::nullopt;
  const auto parsed = nlohmann::json::parse(read_text_file(folder.environment()), nullptr, false);
  if (!parsed.is_object() || !parsed.contains("started_in") || !parsed["started_in"].is_string())
    return std::nullopt;
  std::error_code error;
  const fs::path there =
      fs::canonical(fs::absolute(folder.path) / parsed["started_in"].get<std::string>(), error);
  return error ? std::nullopt : std::optional(there);
}

}  // namespace

std::string current_directory_from(const fs::path& run_folder) {
  return fs::proximate(fs::current_path(), run_folder).string();
}

recipe::Recipe seen_from_here(const RunFolder& folder, recipe::Recipe recipe) {
  const std::optional<fs::path> began = started_in(folder);
  std::error_code none;
  const fs::path here = fs::current_path(none);
  if (!began || fs::equivalent(*began, here, none)) return recipe;
  for (const char* key : keys_of_paths) {
    const recipe::Field& field = *recipe::find_field(key);
    const auto path = std::get<std::string>(field.get(recipe));
    if (path.empty() || fs::path(path).is_absolute()) continue;
    const fs::path there = *began / path;
    if (fs::exists(data::file_of_array(there.string()), none))
      field.set(recipe, there.lexically_proximate(here).string());
  }
  return recipe;
}

bool same_places(const recipe::Recipe& a, const recipe::Recipe& b) {
  const auto place = [](const recipe::Recipe& recipe, const char* key) {
    std::error_code none;
    const auto path = std::get<std::string>(recipe::find_field(key)->get(recipe));
    return path.empty() ? fs::path() : fs::weakly_canonical(path + "/.", none);
  };
  return std::ranges::all_of(keys_of_paths,
                             [&](const char* key) { return place(a, key) == place(b, key); });
}

}  // namespace trestle::train
