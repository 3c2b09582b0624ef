#pragma once

#include <cstdint>
#include <vector>

#include "trestle/plan/gpt/gpt_model.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/link_bytes.h"
#include "trestle/plan/search/strategy.h"

// Inside of plan. Not installed.
namespace trestle::plan {

// The stages of a GPT: the layers of each, and the parameters of one device.
struct GptStages {
  const std::vector<int>& layers;
  const std::vector<double>& parameters;
};

// For each stage the messages that PlannedGpt::costs() takes the time of.
std::vector<LinkBytes> bytes_sent_by_stages(const GptModel& model, const Strategy& strategy,
                                            const Machine& machine, const GptStages& stages,
                                            std::int64_t micro_batches);

}  // namespace trestle::plan
