#pragma once

#include "trestle/pipeline/pipeline.h"

namespace trestle::pipeline {

// How many stages the options ask for: those of the balance or of the table, else one for each
// device, or over ranks one for each rank.
int stage_count(const PipelineOptions& options);

// Throws UsageError that lists everything that is wrong with the options for a model of so many
// layers.
void check_options(const PipelineOptions& options, int layers);

}  // namespace trestle::pipeline
