#include "trestle/recipe/recipe.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/installed.h"
#include "trestle/base/text.h"
#include "trestle/base/toml_parser.h"
#include "trestle/recipe/recipe_fields.h"

namespace trestle::recipe {

namespace {

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Field& field : recipe_fields())
    if (std::find(names.begin(), names.end(), field.section) == names.end())
      names.push_back(field.section);
  return names;
}

std::string meant_or_known(std::string_view word, const std::vector<std::string>& known) {
  const std::string meant = did_you_mean(word, known);
  return meant.empty() ? text("; known are ", join(known, ", ")) : meant;
}

// "; did you mean [train]?" for a key that only another section has.
std::string elsewhere(std::string_view key) {
  if (const Field* field = find_field_of_other_programs(key))
    return text("; did you mean '", field->key, "' in [", field->section, "]?");
  for (const Field& field : recipe_fields())
    if (field.key == key) return text("; did you mean [", field.section, "]?");
  return "";
}

// "name = unet" is not TOML: texts need quotes. The hint for such a line, or "".
std::string hint_to_quote(std::string_view toml_text, std::uint32_t line) {
  const std::vector<std::string> lines = split(toml_text, '\n');
  if (line == 0 || line > lines.size()) return "";
  const std::string& words = lines[line - 1];
  const std::size_t equals = words.find('=');
  if (equals == std::string::npos) return "";
  const std::string key = trim(words.substr(0, equals));
  const std::string value = trim(words.substr(equals + 1, words.find('#', equals) - equals - 1));
  const auto is_text = [](char c) {
    return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '.' || c == '~';
  };
  const bool unquoted =
      !value.empty() && is_text(value[0]) && value.find_first_of("\"'[]{}") == std::string::npos;
  if (!unquoted) return "";
  if (value == "True" || value == "False" || value == "TRUE" || value == "FALSE")
    return text("TOML writes ", key, " = ", value[0] == 'T' ? "true" : "false", ".");
  return text("A text needs quotes: ", key, " = \"", value, "\"");
}

FieldValue toml_to_value(const toml::node& node, const Field& field) {
  auto wrong = [&](std::string_view what) -> UsageError {
    return UsageError(text("'", field.key, "' in [", field.section, "] must be ", describe(field),
                           ", not ", what));
  };
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  const toml::array* items = node.as_array();
  if (items == nullptr) throw wrong(node.is_table() ? "a section" : "a date or time");
  std::vector<std::int64_t> integers;
  std::vector<std::string> words;
  for (const toml::node& item : *items) {
    if (const auto* v = item.as_integer()) integers.push_back(v->get());
    if (const auto* v = item.as_string()) words.push_back(v->get());
  }
  if (integers.size() == items->size()) return integers;
  if (words.size() == items->size()) return words;
  throw wrong("a list of other values");
}

// Reads all sections and collects every problem with its line.
class Reader {
 public:
  Reader(const std::string& file, Recipe& recipe) : file_(file), recipe_(recipe) {}

  void read(const toml::table& root) {
    for (const auto& [name, node] : root) {
      const std::string section(name.str());
      const auto known = section_names();
      if (std::find(known.begin(), known.end(), section) == known.end()) {
        if (node.is_table())
          add(name.source(),
              text("unknown section [", section, "]", meant_or_known(section, known)));
        else
          add(name.source(),
              text("unknown key '", section, "' outside of any section", elsewhere(section)));
      } else if (!node.is_table()) {
        add(name.source(), text("'", section, "' is a section: write [", section, "]"));
      } else {
        read_section(section, *node.as_table());
      }
    }
    if (!problems_.empty()) {
      std::sort(problems_.begin(), problems_.end());
      std::vector<std::string> lines;
      for (const auto& [line, message] : problems_) lines.push_back(message);
      throw UsageError(join(lines, "\n"));
    }
  }

 private:
  void add(const toml::source_region& source, const std::string& what) {
    problems_.emplace_back(source.begin.line, text(toml_place(file_, source), ": ", what));
  }

  void read_section(const std::string& section, const toml::table& table) {
    for (const auto& [name, node] : table) {
      const std::string key(name.str());
      const Field* field = find_field(section + "." + key);
      if (field == nullptr) {
        std::vector<std::string> keys;
        for (const Field& known : recipe_fields())
          if (known.section == section) keys.push_back(known.key);
        const std::string other = elsewhere(key);
        add(name.source(), text("unknown key '", key, "' in [", section, "]",
                                other.empty() ? meant_or_known(key, keys) : other));
        continue;
      }
      try {
        field->set(recipe_, check_value(*field, toml_to_value(node, *field)));
      } catch (const UsageError& error) {
        add(node.source(), error.what());
      }
    }
  }

  const std::string& file_;
  Recipe& recipe_;
  std::vector<std::pair<std::uint32_t, std::string>> problems_;
};

}  // namespace

Recipe parse_recipe(std::string_view toml_text, const std::string& file) {
  Recipe recipe;
  recipe.name = std::filesystem::path(file).stem().string();
  toml::table root;
  try {
    root = toml::parse(toml_text, std::string_view(file));
  } catch (const toml::parse_error& error) {
    throw UsageError(text(toml_place(file, error.source()), ": ", error.description()),
                     {.hint = hint_to_quote(toml_text, error.source().begin.line)});
  } catch (const std::invalid_argument& error) {
    throw UsageError(text(file, ": ", error.what()));
  }
  Reader(file, recipe).read(root);
  return recipe;
}

namespace {

bool is_name(const std::filesystem::path& path) {
  return !path.has_parent_path() && !path.has_extension();
}

// The path of a recipe: "resnet18_mnist" stands for recipes/resnet18_mnist.toml if no such file
// exists.
[[noreturn]] void refuse_missing(const std::filesystem::path& path) {
  if (!is_name(path))
    throw UsageError(text(path.string(), ": no such recipe"),
                     {.hint = "Name a TOML file, for example recipes/unet_quick.toml, or a recipe "
                              "in the folder recipes."});
  std::vector<std::string> folders;
  std::error_code none;
  for (const std::filesystem::path& folder : recipe_folders()) {
    const auto absolute = std::filesystem::absolute(folder, none).lexically_normal();
    folders.push_back(absolute.has_filename() ? absolute.string()
                                              : absolute.parent_path().string());
  }
  throw UsageError(text(path.string(), ": no such recipe: there is no ", path.string(), ".toml in ",
                        join(folders, ", nor in ")),
                   {.hint = "Name a TOML file with its path."});
}

}  // namespace

std::vector<std::filesystem::path> recipe_folders() {
  return folders_of_installed("recipes", TRESTLE_RECIPES);
}

std::filesystem::path recipe_file(const std::filesystem::path& path) {
  if (std::filesystem::exists(path) || !is_name(path)) return path;
  for (const std::filesystem::path& folder : recipe_folders())
    if (const auto known = folder / (path.string() + ".toml"); std::filesystem::exists(known))
      return known;
  return path;
}

Recipe read_recipe(const std::filesystem::path& asked) {
  const std::filesystem::path path = recipe_file(asked);
  if (!std::filesystem::exists(path)) refuse_missing(path);
  if (std::filesystem::is_directory(path))
    throw UsageError(text(path.string(), ": is a folder, not a recipe file"));
  const std::string content = read_text_file(path);
  if (trim(content).empty())
    throw UsageError(text(path.string(), ": the recipe is empty"),
                     {.hint = "Give at least 'name' in [model] and 'name' in [data]."});
  return parse_recipe(content, path.string());
}

void set_field(Recipe& recipe, std::string_view name, std::string_view value) {
  const Field* field = find_field(name);
  if (field == nullptr) {
    std::vector<std::string> names;
    for (const Field& known : recipe_fields()) names.push_back(known.name());
    const Field* other = find_field_of_other_programs(name.substr(name.find('.') + 1));
    throw UsageError(
        text("recipes have no field '", name, "'",
             other ? text("; did you mean '", other->name(), "'?") : did_you_mean(name, names)));
  }
  field->set(recipe, parse_value(*field, value));
}

// Refuses keys that have no effect.
static void add_problems_of_mesh(const Recipe::Mesh& mesh, std::vector<std::string>& problems) {
  const Recipe::Mesh usual;
  const bool shards = mesh.shard > 1 && mesh.shard_level != "none";
  const bool shards_parameters = shards && mesh.shard_level == "parameters";
  const auto refuse = [&](const char* key, const char* needs) {
    problems.push_back(text("'", key, "' in [mesh] has no effect without ", needs));
  };
  if (!shards_parameters && mesh.units != usual.units)
    refuse("units", "'shard' above 1 and 'shard_level' = \"parameters\"");
  if (!shards_parameters && mesh.reshard != usual.reshard)
    refuse("reshard", "'shard' above 1 and 'shard_level' = \"parameters\"");
  constexpr const char* tensor =
      "'tensor' above 1: give it, for example --mesh tensor=2, or leave the key out";
  if (mesh.tensor == 1 && mesh.sequence_parallel) refuse("sequence_parallel", tensor);
  if (mesh.tensor == 1 && !mesh.split_layers.empty()) refuse("split_layers", tensor);
  if (!shards && mesh.offload) refuse("offload", "'shard' above 1 and a 'shard_level' above none");
  if (mesh.bucket.empty()) return;
  if (mesh.parts() == 1) refuse("bucket", "'replicate' or 'shard' above 1");
  if (shards_parameters)
    problems.push_back(
        "'bucket' in [mesh] has no effect at level parameters, where each unit is a bucket: give "
        "'units' a size");
}

static void add_problems_of_split_recomputed(const Recipe& recipe,
                                             std::vector<std::string>& problems) {
  if (!recipe.pipeline.split_recomputed) return;
  const auto refuse = [&](const char* why) {
    problems.push_back(text("'split_recomputed' in [pipeline] ", why));
  };
  if (recipe.mesh.tensor == 1)
    refuse(
        "has no effect without 'tensor' above 1 in [mesh]: give it, for example --mesh tensor=2, "
        "or leave the key out");
  if (recipe.mesh.sequence_parallel)
    refuse(
        "does not work with 'sequence_parallel' in [mesh], with which each tensor rank keeps the "
        "tokens that it has: give one of them");
  const auto& names = recipe.pipeline.checkpoint;
  if (std::all_of(names.begin(), names.end(), [](const auto& name) { return name == "attention"; }))
    refuse("has no effect without layers in 'checkpoint', such as [\"blocks\"]");
}

void check_recipe(const Recipe& recipe, std::vector<std::string> problems) {
  if (recipe.model.name.empty())
    problems.push_back("no model: give 'name' in [model], for example \"unet\"");
  if (recipe.pipeline.micro_batches > 1 && recipe.pipeline.split_size > 0)
    problems.push_back(
        text("'micro_batches' = ", recipe.pipeline.micro_batches,
             " and 'split_size' = ", recipe.pipeline.split_size,
             " in [pipeline] are both given: give either the number of micro-batches of a "
             "batch or the samples of a micro-batch"));
  if (recipe.pipeline.recompute.empty())
    problems.push_back("'recompute' in [pipeline] is an empty list");
  const auto& recompute = recipe.pipeline.recompute;
  const auto& balance = recipe.pipeline.balance;
  if (recompute.size() > 1 && !balance.empty() && recompute.size() != balance.size())
    problems.push_back(text("'recompute' in [pipeline] names ", recompute.size(),
                            " stages, 'balance' ", balance.size()));
  if (recipe.pipeline.checkpoint_segments > 0 && !recipe.pipeline.checkpoint.empty())
    problems.push_back(
        "'checkpoint' and 'checkpoint_segments' in [pipeline] are both given: give either the "
        "names of layers or the number of segments of a stage");
  if (recipe.train.batch < recipe.mesh.parts())
    problems.push_back(
        text("a batch of ", recipe.train.batch, " has fewer examples than [mesh] has replicas, ",
             recipe.mesh.parts(),
             ": give a larger 'batch' in [train], which counts the examples of all replicas"));
  if (recipe.mesh.shard == 1 && recipe.mesh.shard_level != Recipe::Mesh().shard_level)
    problems.push_back(
        text("'shard_level' = \"", recipe.mesh.shard_level,
             "\" in [mesh] needs ranks to shard over: give 'shard', for example --mesh shard=2"));
  add_problems_of_mesh(recipe.mesh, problems);
  add_problems_of_split_recomputed(recipe, problems);
  if (!problems.empty()) throw UsageError(join(problems, "\n"));
}

std::string to_toml(const Recipe& recipe) {
  std::ostringstream out;
  std::string section;
  for (const Field& field : recipe_fields()) {
    if (field.section != section)
      out << (section.empty() ? "" : "\n") << "[" << field.section << "]\n";
    section = field.section;
    out << field.key << " = " << to_toml(field.get(recipe)) << "\n";
  }
  return out.str();
}

std::string recipe_hash(const Recipe& recipe) {
  std::uint64_t hash = fnv1a_offset_basis;
  for (const Field& field : recipe_fields()) {
    if (field.on_resume != Field::OnResume::MustBeEqual) continue;
    hash = fnv1a(field.name() + "=" + to_toml(field.get(recipe)) + "\n", hash);
  }
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash));
  return hex;
}

}  // namespace trestle::recipe
