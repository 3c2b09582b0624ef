#include "trestle/train/without_effect.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/optim/options/optimizer_options.h"
#include "trestle/train/data_sets/data_set.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/optimizers/run_rate.h"

namespace trestle::train {

namespace {

using recipe::Field;
using recipe::Recipe;

// The keys that every data set reads, or that say themselves what they are for.
constexpr std::array<std::string_view, 6> keys_of_all_data = {"name", "workers", "flip",
                                                              "crop", "colour",  "synthesize"};

std::string why_in_data(const Recipe& recipe, const Field& field, const UserParts& own) {
  if (recipe.data.name.empty()) return "";  // problems_of_data() reports it
  if (std::ranges::find(keys_of_all_data, field.key) != keys_of_all_data.end()) return "";
  const DataSet set = find_data_set(recipe.data.name, own);
  if (!set.reads(field.key)) return text("for '", set.name, "'");
  return field.key.starts_with("synthesize_") && recipe.data.synthesize == 0
             ? "without 'synthesize'"
             : "";
}

// The learning-rate schedules that read a key.
struct RateKey {
  std::string_view key;
  std::array<std::string_view, 4> schedules;
};
constexpr std::array rate_keys = {
    RateKey{"schedule_length", {"cosine", "cosine_decay", "linear_decay", "one_cycle"}},
    RateKey{"min_learning_rate", {"cosine", "cosine_decay", "linear_decay"}},
    RateKey{"decay_factor", {"step", "multi_step"}},
    RateKey{"decay_every", {"step"}},
    RateKey{"milestones", {"multi_step"}},
    RateKey{"one_cycle_rise", {"one_cycle"}},
    RateKey{"one_cycle_first_divisor", {"one_cycle"}},
    RateKey{"one_cycle_last_divisor", {"one_cycle"}},
    RateKey{"one_cycle_momentum", {"one_cycle"}},
    RateKey{"one_cycle_lowest_momentum", {"one_cycle"}},
    RateKey{"one_cycle_highest_momentum", {"one_cycle"}},
};

std::string why_in_rate(const Recipe::Optimizer& optimizer, const Field& field) {
  const std::string& schedule = optimizer.learning_rate_schedule;
  for (const RateKey& known : rate_keys)
    if (known.key == field.key && !(optimizer.plateau && field.key == "min_learning_rate") &&
        std::ranges::find(known.schedules, schedule) == known.schedules.end())
      return text("for the learning-rate schedule '", schedule, "'",
                  field.key == "min_learning_rate" ? " without 'plateau'" : "");
  const bool momentum_range =
      field.key == "one_cycle_lowest_momentum" || field.key == "one_cycle_highest_momentum";
  if (momentum_range && !cycles_momentum(optimizer)) return "without 'one_cycle_momentum'";
  if (field.key == "warm_up_from" && optimizer.warm_up == 0) return "without 'warm_up'";
  if (field.key == "schedule_by" && schedule == "constant" && optimizer.warm_up == 0)
    return "for a constant learning rate without 'warm_up'";
  if (field.key.starts_with("plateau_") && !optimizer.plateau) return "without 'plateau'";
  return "";
}

std::string why_in_optimizer(const Recipe& recipe, const Field& field) {
  for (const optim::OptimizerOption& option : optim::optimizer_option_table)
    if (option.name == field.key && !option.is_read_by(recipe.optimizer.name))
      return text("for the optimizer '", recipe.optimizer.name, "'");
  return why_in_rate(recipe.optimizer, field);
}

std::string why_elsewhere(const Recipe& recipe, const Field& field) {
  const std::string whole_name = field.name();
  const std::string_view name = whole_name;  // GCC 12 warns of comparing the string inlined
  if (field.section == "plan" && !recipe.plan.automatic) return "without 'auto'";
  if (name == "model.weights_strict" && recipe.model.weights.empty()) return "without 'weights'";
  if (name == "pipeline.backward_order" && recipe.pipeline.schedule != "gpipe")
    return text("for the schedule '", recipe.pipeline.schedule, "'");
  if (name == "transformer.rope_theta" && recipe.model.name != "llama")
    return "for models other than llama";
  const bool of_language = name == "train.peak_tflops" || name == "train.sample_tokens";
  if (of_language && !is_transformer(recipe)) return "for models other than language models";
  if (name == "train.min_delta" && recipe.train.patience == 0) return "without 'patience'";
  return "";
}

std::string sentence(const Field& field, const std::string& why) {
  return text("'", field.key, "' in [", field.section, "] has no effect ", why);
}

// The key that does what the other one was probably meant to do.
std::string hint_for(const Recipe& recipe, const Field& field) {
  if (field.key == "shape" && recipe.data.name == "carvana")
    return "'synthesize_width' and 'synthesize_height' in [data] are the size of synthetic images.";
  return "Leave it out.";
}

bool is_set(const Recipe& recipe, const Field& field) {
  static const Recipe standard;
  return field.get(recipe) != field.get(standard);
}

}  // namespace

std::string why_without_effect(const Recipe& recipe, const Field& field, const UserParts& own) {
  if (field.section == "data") return why_in_data(recipe, field, own);
  if (field.section == "optimizer") return why_in_optimizer(recipe, field);
  return why_elsewhere(recipe, field);
}

void refuse_without_effect(const std::vector<Recipe>& recipes,
                           const std::vector<std::string>& fields, const UserParts& own) {
  for (const std::string& name : fields) {
    const Field* field = recipe::find_field(name);
    if (field == nullptr) continue;  // set_field() refuses it
    bool set = false, idle = true;
    for (const Recipe& recipe : recipes) {
      set = set || is_set(recipe, *field);
      idle = idle && !why_without_effect(recipe, *field, own).empty();
    }
    if (set && idle)
      throw UsageError(sentence(*field, why_without_effect(recipes[0], *field, own)),
                       {.hint = hint_for(recipes[0], *field)});
  }
}

std::vector<std::string> notes_without_effect(const Recipe& recipe,
                                              const std::vector<std::string>& set,
                                              const UserParts& own) {
  std::vector<std::string> notes;
  for (const Field& field : recipe::recipe_fields()) {
    const bool by_caller = std::ranges::any_of(
        set, [&](const std::string& name) { return recipe::find_field(name) == &field; });
    if (by_caller || !is_set(recipe, field)) continue;
    const std::string why = why_without_effect(recipe, field, own);
    if (!why.empty()) notes.push_back("note      " + sentence(field, why));
  }
  return notes;
}

}  // namespace trestle::train
