#pragma once

#include <string>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/models/model.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/stage_costs.h"
#include "trestle/recipe/recipe.h"
#include "trestle/schedule/timeline.h"
#include "trestle/train/user_parts.h"

// What the layers of a recipe's model cost: the numbers behind "trestle balance".
namespace trestle::train {

class Progress;

struct LayerCosts {
  plan::LayerProfile profile;
  std::vector<std::string> devices;  // of the recipe, one for each stage
  std::vector<Bytes> budgets;        // theirs; 0 = no limit
  plan::SizeOptions sizes;           // of the recipe
  int examples = 0;                  // of the micro-batch that was measured
};

// All of these but the profile and the examples. A single device stands for all stages of a balance
// that the recipe gives.
LayerCosts costs_without_layers(const recipe::Recipe& recipe, const std::vector<Device>& devices,
                                int micro_batches);

// Measures them on the recipe's first device, with the first of the data (which are made where the
// recipe says so). Throws as train() does.
LayerCosts measure_layers(const recipe::Recipe& recipe, Progress& progress,
                          const models::OwnModels& own, const UserParts& user_parts = {});

// The same from a profile that was measured before. No data are opened, nothing is run, and
// the devices need not exist. Throws UsageError where its layers are not those of the recipe's model,
// or its micro-batch or order in memory not the recipe's.
LayerCosts costs_of_profile(const recipe::Recipe& recipe, plan::LayerProfile profile,
                            const models::OwnModels& own, const UserParts& user_parts = {});

// The recipe's step on paper, cut so: what stages cost and what goes between them. Transfers take no
// time. Throws as plan::costs_of_cut().
plan::CutCosts costs_of_cut(const recipe::Recipe& recipe, const LayerCosts& costs,
                            const std::vector<int>& balance, const UserParts& user_parts = {});

// The recipe's modes, one for each stage. Throws UsageError where it has another number of them.
std::vector<schedule::Recompute> recompute_modes(const recipe::Recipe& recipe, std::size_t stages);

// The recipe's schedule for such a cut, lowered. Throws UsageError where it does not allow so many
// stages.
schedule::Schedule lowered_table(const recipe::Recipe& recipe,
                                 const std::vector<schedule::Route>& routes, int micro_batches,
                                 const std::vector<schedule::Recompute>& modes);

// What the simulator expects of it all. Of a plain CPU no bytes are known. Throws as these do.
schedule::Timeline predict_cut(const recipe::Recipe& recipe, const LayerCosts& costs,
                               const std::vector<int>& balance, const UserParts& user_parts = {});

}  // namespace trestle::train
