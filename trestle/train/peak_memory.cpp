#include "trestle/train/peak_memory.h"

#include <algorithm>
#include <sstream>

#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"

namespace trestle::train {

void PeakMemory::reset(const std::vector<Device>& devices) {
  for (const Device& device : devices)
    if (!device.torch.is_cpu()) reset_peak_memory(device.torch);
}

void PeakMemory::update(const Pipeline& pipeline, const RunPlan& plan, const RunRanks& ranks) {
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    if (!pipeline.has_stage(stage)) continue;
    const Device& device = pipeline.device(stage);
    if (device.torch.is_cpu()) continue;
    DevicePeak& peak = peak_of(device_name(device.torch), plan);
    peak.measured = std::max(peak.measured, memory_usage(device.torch).peak);
  }
  gather(ranks);
}

DevicePeak& PeakMemory::peak_of(const std::string& device, const RunPlan& plan) {
  const auto known = std::find_if(peaks_.begin(), peaks_.end(),
                                  [&](const DevicePeak& peak) { return peak.device == device; });
  if (known != peaks_.end()) return *known;
  DevicePeak peak{.device = device};
  for (const RunPlan::Stage& stage : plan.stages)
    if (stage.device == device) peak.predicted = stage.predicted_peak;
  peaks_.push_back(peak);
  return peaks_.back();
}

void PeakMemory::gather(const RunRanks& ranks) {
  if (ranks.alone()) return;
  std::vector<std::string> rows;
  for (const DevicePeak& peak : peaks_)
    rows.push_back(text(peak.predicted, " ", peak.measured, " ", peak.device));
  peaks_.clear();
  const auto lines = comm::with_purpose(
      [] { return "while the ranks gathered the peaks of their devices' memory"; },
      [&] { return ranks.gather_lines(rows); });
  for (const std::string& line : lines) {
    std::istringstream row(line);
    DevicePeak peak;
    row >> peak.predicted >> peak.measured >> peak.device;
    const auto known = std::find_if(peaks_.begin(), peaks_.end(),
                                    [&](const auto& other) { return other.device == peak.device; });
    if (known == peaks_.end())
      peaks_.push_back(peak);
    else
      known->measured = std::max(known->measured, peak.measured);
  }
}

}  // namespace trestle::train
