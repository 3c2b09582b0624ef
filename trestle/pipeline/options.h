#pragma once

#include "trestle/pipeline/pipeline_options.h"

namespace trestle::pipeline {

// The number of stages: of the balance or the table if there is one, else one a device, or over
// ranks one a rank.
int stage_count(const PipelineOptions& options);

// Throws UsageError that lists all mistakes in the options for a model of `layers` layers.
void check_options(const PipelineOptions& options, int layers);

}  // namespace trestle::pipeline
