#include "trestle/device/unlimited_budgets.h"

#include "trestle/device/virtual_device.h"

namespace trestle {

UnlimitedBudgets::UnlimitedBudgets(const std::vector<at::Device>& devices) {
  for (const auto& device : devices) {
    if (!device.is_privateuseone()) continue;
    budgets_.emplace_back(device, budget(device));
    set_budget(device, 0);
  }
}

UnlimitedBudgets::~UnlimitedBudgets() {
  // Backwards: a device that is named twice was noted with its own budget first.
  for (auto kept = budgets_.rbegin(); kept != budgets_.rend(); ++kept)
    set_budget(kept->first, kept->second);
}

}  // namespace trestle
