#include "trestle/deepspeed/config/to_recipe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/config/sections.h"
#include "trestle/recipe/recipe_fields.h"

namespace trestle::deepspeed {

namespace {

using Changes = std::vector<std::pair<std::string, std::string>>;

// Maps a file that read_deepspeed_config() has parsed to changes of a recipe.
class Mapping {
 public:
  Mapping(DeepspeedConfig config, Json json, const recipe::Recipe& recipe, const Changes& given)
      : config_(std::move(config)), json_(std::move(json)), recipe_(recipe), given_(given) {
    map_batch();
    map_mesh();
    map_precision();
    map_optimizer();
    set("train.deepspeed_config", rest());
  }

  Changes changes;
  std::string description() const { return to_text(config_, own_); }

 private:
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  void set(const std::string& field, const std::string& value) {
    changes.emplace_back(field, value);
  }
  void set(const std::string& field, double value) {
    set(field, recipe::to_toml(recipe::FieldValue(value)));
  }
  void set_switch(const std::string& field, bool value) { set(field, value ? "true" : "false"); }

  void map_batch() {
    set("train.batch", text(config_.micro_batch * config_.ranks));
    set("train.accumulate", text(config_.accumulate));
    if (has("dataloader_drop_last")) set_switch("train.drop_last", config_.drop_last);
  }

  void map_mesh() {
    const std::int64_t shard = config_.stage == 0        ? 1
                               : config_.shard_ranks > 0 ? config_.shard_ranks
                                                         : config_.ranks;
    set("mesh.replicate", text(config_.ranks / shard));
    set("mesh.shard", text(shard));
    set("mesh.shard_level", shard > 1 ? config_.level() : recipe::Recipe::Mesh().shard_level);
    if (config_.stage > 0 && shard == 1)
      config_.without_effect.push_back(text("zero_optimization.stage ", config_.stage,
                                            ": there is only one rank, so nothing is sharded"));
  }

  void map_precision() {
    if (has("fp16") || has("bf16") || has("bfloat16")) {
      set("train.precision", config_.precision);
      if (config_.precision != "fp32")
        config_.notes.push_back(text(config_.precision,
                                     ": operators compute in it by autocast, and every rank keeps "
                                     "fp32 weights; DeepSpeed keeps weights in it too"));
    } else {
      own_.precision = recipe_.train.precision + ", from the recipe";
    }
  }

  // DeepSpeed's default counts where neither the file nor the recipe nor a flag clips.
  void map_clipping() {
    const char* const field = "optimizer.clip_grad_norm";
    const double own = recipe_.optimizer.clip_grad_norm;
    const bool by_flag =
        std::ranges::any_of(given_, [&](const auto& flag) { return flag.first == field; });
    if (has("gradient_clipping") || (own == 0 && !by_flag))
      set(field, config_.clip_grad_norm);
    else if (own > 0)
      own_.clipping = text("a gradient norm above ", recipe::to_toml(recipe::FieldValue(own)),
                           ", from the recipe");
    else
      own_.clipping = "none";
  }

  void map_optimizer() {
    map_clipping();
    if (config_.optimizer) {
      set("optimizer.name", config_.optimizer->name);
      for (const optim::OptimizerOption& option : optim::optimizer_option_table)
        optim::with_value(option, *config_.optimizer, [&](const auto& value) {
          set("optimizer." + std::string(option.name), recipe::to_toml(recipe::FieldValue(value)));
        });
    } else {
      own_.optimizer = recipe_.optimizer.name + ", from the recipe";
    }
    if (config_.schedule) {
      set("optimizer.learning_rate_schedule", "constant");
      set("optimizer.warm_up", "0");
      set_switch("optimizer.plateau", false);
    } else {
      own_.schedule = recipe_.optimizer.learning_rate_schedule + ", from the recipe";
    }
  }

  // Leaves out everything that depends on the number of ranks, which may differ on resume.
  std::string rest() const {
    Json rest = json_;
    for (const char* term : {"train_batch_size", "gradient_accumulation_steps"}) rest.erase(term);
    rest["train_micro_batch_size_per_gpu"] = 1;
    if (rest.contains("zero_optimization") && rest["zero_optimization"].is_object())
      rest["zero_optimization"].erase("mics_shard_size");
    return rest.dump();
  }

  DeepspeedConfig config_;
  const Json json_;
  const recipe::Recipe& recipe_;
  const Changes& given_;
  DeepspeedOwn own_;
};

std::string flag_of(const std::string& name) {
  const recipe::Field& field = *recipe::find_field(name);
  std::string flag = recipe::key_is_unique(field) ? field.key : name;
  std::ranges::replace(flag, '_', '-');
  return "--" + flag;
}

// Rejects values that DeepSpeed allows and a recipe does not, such as a momentum above 1.
void refuse_out_of_range(const Changes& changes, const std::string& file) {
  std::vector<std::string> problems;
  for (const auto& [name, value] : changes) {
    try {
      recipe::parse_value(*recipe::find_field(name), value);
    } catch (const UsageError& error) {
      problems.push_back(text(file, ": in a recipe, ", error.what()));
    }
  }
  if (!problems.empty()) throw UsageError(join(problems, "\n"));
}

void refuse_contradictions(const recipe::Recipe& recipe, const Changes& changes,
                           const Changes& given, const std::string& file) {
  std::vector<std::string> problems;
  for (const auto& [name, value] : changes) {
    if (std::ranges::none_of(given, [&](const auto& flag) { return flag.first == name; })) continue;
    const recipe::Field& field = *recipe::find_field(name);
    const recipe::FieldValue asked = field.get(recipe), said = recipe::parse_value(field, value);
    if (asked != said)
      problems.push_back(text(flag_of(name), " ", recipe::to_toml(asked), " contradicts ", file,
                              ", which sets ", recipe::to_toml(said)));
  }
  if (!problems.empty())
    throw UsageError(join(problems, "\n"),
                     {.hint = "Leave the flag out, or change the file to agree with it."});
}

// Rejects a second schedule, which would be ignored.
void refuse_other_schedules(const recipe::Recipe& recipe, const std::string& type) {
  const auto& optimizer = recipe.optimizer;
  std::vector<std::string> also;
  if (optimizer.learning_rate_schedule != "constant")
    also.push_back(text("learning_rate_schedule = \"", optimizer.learning_rate_schedule, "\""));
  if (optimizer.warm_up > 0) also.push_back(text("warm_up = ", optimizer.warm_up));
  if (optimizer.plateau) also.emplace_back("plateau = true");
  if (!also.empty())
    throw UsageError(text("'deepspeed_config' in [train] has the scheduler ", type,
                          ", and [optimizer] has ", join(also, ", ")),
                     {.hint = "Remove one of the schedules."});
}

}  // namespace

DeepspeedRun deepspeed_run(const std::filesystem::path& file, const recipe::Recipe& recipe,
                           int ranks, const Changes& given) {
  const int stages = static_cast<int>(std::max<std::int64_t>(recipe.mesh.pipeline, 1));
  if (ranks % stages != 0)
    throw UsageError(text("[mesh] has pipeline = ", stages,
                          ", which does not divide the number of ranks, ", ranks, " ranks"));
  const std::string bytes = read_bytes(file);  // read once, because it may be a pipe
  // First, because its errors name the file and what to do.
  DeepspeedConfig config = parse_deepspeed_config(bytes, file.string(), ranks / stages);
  Mapping mapping(std::move(config),
                  Json::parse(bytes, nullptr, /*allow_exceptions=*/true, /*ignore_comments=*/true),
                  recipe, given);
  refuse_out_of_range(mapping.changes, file.string());
  refuse_contradictions(recipe, mapping.changes, given, file.string());
  return {std::move(mapping.changes), mapping.description()};
}

std::optional<DeepspeedConfig> deepspeed_config_of(const recipe::Recipe& recipe) {
  if (recipe.train.deepspeed_config.empty()) return std::nullopt;
  DeepspeedConfig config =
      parse_deepspeed_config(recipe.train.deepspeed_config, "'deepspeed_config' in [train]", 1);
  if (config.schedule) refuse_other_schedules(recipe, config.schedule->type);
  return config;
}

bool has_rates_of_its_own(const DeepspeedSchedule& schedule) {
  return schedule.type != "WarmupCosineLR";  // its rates are multiples of the optimizer's
}

}  // namespace trestle::deepspeed
