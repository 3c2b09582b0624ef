#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "trestle/checkpoint/files/box.h"

// Names for the optimizer of DeepSpeed's stage 0. Torch-free. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// A parameter of an optimizer of torch.optim, which numbers its parameters group by group.
struct OptimizerSlot {
  std::size_t group = 0;
  std::optional<Sizes> shape = {};  // nothing: it has no state, as that of a frozen parameter
};

struct SlotMatch {
  // The number of the model's parameter, for each slot with a shape.
  std::vector<std::optional<std::size_t>> parameters = {};
  std::string problem = {};  // not empty: the slots match in no way, or in several
};

// Finds the parameter of the model that each slot is. An optimizer of one group with all parameters
// has the model's order. Otherwise a group has some of them in the model's order, and the shapes
// must leave no choice: all slots of one shape are in one group, and the model has no other
// parameter of that shape.
SlotMatch match_slots(const std::vector<OptimizerSlot>& slots,
                      const std::vector<Sizes>& parameters);

}  // namespace trestle::checkpoint
