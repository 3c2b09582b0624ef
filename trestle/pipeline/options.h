#pragma once

#include "trestle/pipeline/pipeline_options.h"

namespace trestle::pipeline {

// The number of stages: of the balance or the table if there is one, else stages_per_rank() a
// device, or over ranks a rank.
int stage_count(const PipelineOptions& options);

// The number of stages of each rank without a table.
int stages_per_rank(const PipelineOptions& options);

// [stage] its rank. Throws UsageError where the stages cannot be spread evenly.
std::vector<int> ranks_of_stages(const PipelineOptions& options);
int rank_count(const PipelineOptions& options);

// One device for each stage of this process, or one for all.
std::vector<Device> devices_of_stages(const PipelineOptions& options);

// Throws UsageError that lists all mistakes in the options for a model of `layers` layers.
void check_options(const PipelineOptions& options, int layers);

}  // namespace trestle::pipeline
