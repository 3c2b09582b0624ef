#pragma once

#include <c10/core/Device.h>

#include <utility>
#include <vector>

#include "trestle/base/units.h"

namespace trestle::pipeline {

// Virtual devices without their budgets while it lives: what a plan needs can then be measured also
// where it does not fit. Other devices are left alone.
class BudgetLifter {
 public:
  explicit BudgetLifter(const std::vector<at::Device>& devices);
  ~BudgetLifter();
  BudgetLifter(const BudgetLifter&) = delete;
  BudgetLifter& operator=(const BudgetLifter&) = delete;

 private:
  std::vector<std::pair<at::Device, Bytes>> budgets_;
};

}  // namespace trestle::pipeline
