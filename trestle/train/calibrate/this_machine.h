#pragma once

#include "trestle/plan/machine/calibration.h"

// Includes no torch. Inside of the trainer. Not installed.
namespace trestle::train {

// The contents of a file that is measured here and now, as [measured_on] without `devices`.
plan::MeasuredOn this_machine();

}  // namespace trestle::train
