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
  // In reverse: for a device that is listed twice, the first entry has the original budget.
  for (auto kept = budgets_.rbegin(); kept != budgets_.rend(); ++kept)
    set_budget(kept->first, kept->second);
}

}  // namespace trestle
