#pragma once

#include <vector>

#include "trestle/device/device.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/run_ranks.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The peaks of the devices that the run's stages are on, measured and predicted. A plain CPU has no
// meter and no entry.
class PeakMemory {
 public:
  // Starts a new measurement on each device; earlier peaks stay in devices().
  static void reset(const std::vector<Device>& devices);
  // Takes the peaks since the last reset() into devices(). All ranks call it, and all get the peaks
  // of all ranks. `plan` has the predictions.
  void update(const Pipeline& pipeline, const RunPlan& plan, const RunRanks& ranks);

  const std::vector<DevicePeak>& devices() const { return peaks_; }

 private:
  DevicePeak& peak_of(const std::string& device, const RunPlan& plan);
  void gather(const RunRanks& ranks);

  std::vector<DevicePeak> peaks_;
};

}  // namespace trestle::train
