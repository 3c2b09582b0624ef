#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/deepspeed/config/config.h"
#include "trestle/recipe/recipe.h"

// Applies DeepSpeed's JSON to the recipe of a run. Needs no torch.
namespace trestle::deepspeed {

struct DeepspeedRun {
  // "train.batch", "64": changes of the recipe, as flags make them. Settings that the file leaves
  // out keep the recipe's values.
  std::vector<std::pair<std::string, std::string>> changes;
  std::string description;  // to_text() of the resolved configuration
};

// `ranks` is the number of all ranks; [mesh] pipeline of them share the stages of one model.
// `given` holds the flags of the command line, which `recipe` includes already. Throws UsageError,
// listing all contradictions, if the file contradicts a flag, and throws what
// read_deepspeed_config() throws.
DeepspeedRun deepspeed_run(const std::filesystem::path& file, const recipe::Recipe& recipe,
                           int ranks,
                           const std::vector<std::pair<std::string, std::string>>& given);

// The configuration in [train] deepspeed_config, for settings without a key of their own: fp16's
// scale, the schedule, the buckets, offloading. Nothing if it is empty. Throws UsageError if
// [optimizer] has another schedule.
std::optional<DeepspeedConfig> deepspeed_config_of(const recipe::Recipe& recipe);

// True if the schedule's rates do not depend on the optimizer's rate.
bool has_rates_of_its_own(const DeepspeedSchedule& schedule);

}  // namespace trestle::deepspeed
