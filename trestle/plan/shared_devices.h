#pragma once

#include <functional>
#include <optional>
#include <vector>

// Cuts a model into stages of which several are on one device and share its budget. Inside of
// balance.cpp.
namespace trestle::plan {

struct SharedDevices {
  std::vector<bool> may_cut = {};         // [i] whether a stage may begin at layer i; and the end
  std::vector<int> device_of_stage = {};  // from 0
  std::vector<double> budgets = {};       // of the devices, in bytes; 0 = no limit
  // The costs of a stage with the layers [first, last).
  std::function<double(int first, int last)> seconds = {};
  std::function<double(int first, int last)> bytes = {};
};

// The number of layers of each stage, such that the slowest stage is as fast as possible, and the
// stages of each device together fit its budget. Nothing if no cut fits. Among equal optima the
// first stage takes the most layers possible, then the second, and so on.
//
// The search keeps, for each end of the model, the least bytes that it can need on the devices. It
// is exact, unless more than 2000 such needs are not comparable, which takes several devices with
// several stages each; then it keeps the smallest.
std::optional<std::vector<int>> fastest_cut(const SharedDevices& problem);

}  // namespace trestle::plan
