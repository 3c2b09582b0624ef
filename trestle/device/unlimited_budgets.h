#pragma once

#include <c10/core/Device.h>

#include <utility>
#include <vector>

#include "trestle/base/units.h"

namespace trestle {

// Removes the budgets of virtual devices while it lives, so that a plan's memory can be measured
// even if it does not fit. Other devices are left alone.
class UnlimitedBudgets {
 public:
  explicit UnlimitedBudgets(const std::vector<at::Device>& devices);
  ~UnlimitedBudgets();
  UnlimitedBudgets(const UnlimitedBudgets&) = delete;
  UnlimitedBudgets& operator=(const UnlimitedBudgets&) = delete;

 private:
  std::vector<std::pair<at::Device, Bytes>> budgets_;
};

}  // namespace trestle
