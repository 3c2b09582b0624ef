#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/plan/machine/calibration.h"
#include "trestle/train/calibrate/timing.h"

// One device: its products, copies, optimizers and memory. Inside of the trainer. Not installed.
namespace trestle::train {

// How much is measured.
struct CalibrationDepth {
  TimingBudget budget = {};
  double longest_product = 0.5;       // seconds: sizes whose product would take longer are left out
  Bytes memory = Bytes{256} << 20;    // of a copy that measures the memory's bandwidth
  Bytes optimizer = Bytes{32} << 20;  // of parameters that an optimizer steps
  std::vector<Bytes> copies = {};
  std::vector<Bytes> messages = {};
  bool quick = false;
};

CalibrationDepth whole_calibration();
// A few seconds: fewer sizes and samples.
CalibrationDepth quick_calibration();

// The products of one shape and type, for rising sizes. No sizes if the device has no such product;
// `why` then holds the reason.
plan::ProductTable time_products(plan::ProductShape shape, const std::string& type,
                                 at::Device device, const CalibrationDepth& depth,
                                 std::string* why);

// Bytes per second that a copy within the device's memory reads and writes.
plan::Figure memory_bandwidth(at::Device device, const CalibrationDepth& depth);

// Seconds of an operator on one number.
plan::Figure kernel_start(at::Device device, const CalibrationDepth& depth);

plan::CopyTable time_copies(plan::CopyPath path, at::Device from, at::Device to,
                            const CalibrationDepth& depth);

// The optimizers of plan::OptimizerTime, each on one large parameter.
std::vector<std::string> measured_optimizers();
plan::OptimizerTime time_optimizer(const std::string& name, at::Device device,
                                   const CalibrationDepth& depth);
// Seconds of a step of AdamW on one number.
plan::Figure optimizer_start(at::Device device, const CalibrationDepth& depth);

// Bytes of this process that are in memory.
double resident_bytes();

}  // namespace trestle::train
