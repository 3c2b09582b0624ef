#pragma once

#include "trestle/pipeline/pipeline.h"

namespace trestle::pipeline {

// Throws UsageError that lists everything that is wrong with the options for a model of so many
// layers.
void check_options(const PipelineOptions& options, int layers);

}  // namespace trestle::pipeline
