#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/recipe/deepspeed_config.h"
#include "trestle/recipe/recipe.h"

// A recipe's run with what DeepSpeed's JSON says of it. No torch in here.
namespace trestle::recipe {

struct DeepspeedRun {
  // "train.batch", "64": as flags change a recipe. What the file leaves out stays the recipe's.
  std::vector<std::pair<std::string, std::string>> changes;
  std::string description;  // the resolved configuration and what has no effect, a line each
};

// `ranks` are all that there are, of which [mesh] pipeline share the stages of one model. `given` are the flags that
// somebody gave, which `recipe` has already: UsageError where the file says otherwise, with all that contradict it, and as
// read_deepspeed_config().
DeepspeedRun deepspeed_run(const std::filesystem::path& file, const Recipe& recipe, int ranks,
                           const std::vector<std::pair<std::string, std::string>>& given);

// What [train] deepspeed_config of such a recipe says, which no other key can: the scale of fp16, the schedule, the
// buckets, offloading. Nothing where it is empty. Throws UsageError where [optimizer] has another schedule.
std::optional<DeepspeedConfig> deepspeed_config_of(const Recipe& recipe);

// Whether the optimizer's own rate is of no matter to its rates.
bool has_rates_of_its_own(const DeepspeedSchedule& schedule);

}  // namespace trestle::recipe
