#pragma once

#include <optional>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/recipe/recipe.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The machine of a recipe's plan: devices like this one. The layers are measured, so it has no
// figures but its memory and the assumed range of a prediction. A calibrated file adds its name,
// its price, and its memory where the device has no budget.
plan::Machine machine_of_device(const Device& device,
                                const std::optional<plan::Machine>& file = {});

// Installs the virtual devices that plans for `count` devices measure on, which must happen before
// the first backward of the process. Their threads are those of a run that follows in it.
void install_planned_devices(const recipe::Recipe& recipe, int count);

// The number of devices that a recipe is planned for: of the ranks that it lays out if it does, and
// else of its devices.
int planned_count(const recipe::Recipe& recipe, const std::vector<Device>& devices);

}  // namespace trestle::train
