#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/cli/verbs.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/field_help.h"

namespace trestle::cli {

namespace {

// Names that fields have in other programs and in other verbs.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> also_known_as = {
    {{"devices.use", "--devices"},
     {"optimizer.learning_rate", "--lr"},
     {"train.batch", "--batch-size"},
     {"model.name", "--model"}}};

// The fields that --help lists; --help-all lists all.
constexpr std::array<std::string_view, 30> common = {"model.name",
                                                     "model.classes",
                                                     "model.weights",
                                                     "data.name",
                                                     "data.images",
                                                     "data.masks",
                                                     "data.folder",
                                                     "data.input_array",
                                                     "data.target_array",
                                                     "data.scale",
                                                     "data.validation",
                                                     "devices.use",
                                                     "mesh.shard_level",
                                                     "plan.memory",
                                                     "plan.keep",
                                                     "pipeline.balance",
                                                     "pipeline.micro_batches",
                                                     "pipeline.schedule",
                                                     "pipeline.stages_per_rank",
                                                     "pipeline.recompute",
                                                     "optimizer.name",
                                                     "optimizer.learning_rate",
                                                     "train.epochs",
                                                     "train.batch",
                                                     "train.precision",
                                                     "train.seed",
                                                     "train.loss",
                                                     "train.metric",
                                                     "train.save_every",
                                                     "train.runs"};

// "--train.save_every,--train.save-every,--save_every,--save-every", and the field's other names.
std::string flags_of(const recipe::Field& field) {
  std::string dashed = field.key;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  std::string flags = "--" + field.name();
  if (dashed != field.key) flags += ",--" + field.section + "." + dashed;
  if (recipe::key_is_unique(field) && field.name() != "plan.auto") {  // --auto is a switch
    flags += ",--" + field.key;
    if (dashed != field.key) flags += ",--" + dashed;
  }
  for (const auto& [name, flag] : also_known_as)
    if (field.name() == name) flags += text(",", flag);
  return flags;
}

}  // namespace

void add_field_flags(Verb verb, FieldChanges& changes, const RunOptions& options,
                     const std::vector<std::string>& only) {
  const recipe::Recipe defaults;
  for (const recipe::Field& field : recipe::recipe_fields()) {
    if (!only.empty() && std::ranges::find(only, field.name()) == only.end()) continue;
    const std::string standard = recipe::to_toml(field.get(defaults));
    std::string help = train::help_of(field, user_parts_of(options)) + " (" + describe(field);
    if (only.empty() && standard != "\"\"" && standard != "[]") help += "; default " + standard;
    Flag flag = verb.add(
        flags_of(field),
        [&changes, name = field.name()](const std::string& value) {
          changes.emplace_back(name, value);
        },
        help + ")");
    flag.group(field_group(field.section)).type("");
    if (only.empty() && std::ranges::find(common, field.name()) == common.end()) flag.rare();
  }
}

}  // namespace trestle::cli
