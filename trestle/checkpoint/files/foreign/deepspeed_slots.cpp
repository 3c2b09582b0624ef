#include "trestle/checkpoint/files/foreign/deepspeed_slots.h"

#include <algorithm>
#include <map>

#include "trestle/base/text.h"

namespace trestle::checkpoint {

namespace {

SlotMatch match_in_order(const std::vector<OptimizerSlot>& slots,
                         const std::vector<Sizes>& parameters) {
  SlotMatch match;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].shape && *slots[i].shape != parameters[i])
      return {.problem = text("the optimizer has another order of parameters than the model: its ",
                              "number ", i, " is [", join(*slots[i].shape, ", "), "], not [",
                              join(parameters[i], ", "), "]")};
    match.parameters.emplace_back(i);
  }
  return match;
}

}  // namespace

SlotMatch match_slots(const std::vector<OptimizerSlot>& slots,
                      const std::vector<Sizes>& parameters) {
  const bool is_one_group =
      std::all_of(slots.begin(), slots.end(), [](const auto& slot) { return slot.group == 0; });
  if (is_one_group && slots.size() == parameters.size()) return match_in_order(slots, parameters);
  std::map<Sizes, std::vector<std::size_t>> slots_of, parameters_of;
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (slots[i].shape) slots_of[*slots[i].shape].push_back(i);
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters_of[parameters[i]].push_back(i);
  SlotMatch match;
  match.parameters.resize(slots.size());
  for (const auto& [shape, own] : slots_of) {
    const std::vector<std::size_t>& named = parameters_of[shape];
    const bool in_one_group = std::all_of(own.begin(), own.end(), [&](std::size_t i) {
      return slots[i].group == slots[own[0]].group;
    });
    if (own.size() != named.size() || !in_one_group)
      return {.problem =
                  text("the optimizer does not name its parameters: ", own.size(), " of shape [",
                       join(shape, ", "), "] ", in_one_group ? "in one group" : "in several groups",
                       ", and the model has ", named.size())};
    for (std::size_t i = 0; i < own.size(); ++i) match.parameters[own[i]] = named[i];
  }
  return match;
}

}  // namespace trestle::checkpoint
