#pragma once

#include "trestle/schedule/generate.h"

// The functions behind the names of generate.h: one file each. All give compute actions only.
namespace trestle::schedule::generators {

// All forwards, then all backwards (Huang et al. 2019, "GPipe"). Keeps every micro-batch's
// activations.
Schedule gpipe(const GenerateOptions& options);

// Non-interleaved one-forward-one-backward (Narayanan et al. 2021, "PipeDream-Flush"): stage s
// keeps at most min(micro-batches, stages - s) micro-batches. Fewer micro-batches than stages are
// allowed.
Schedule one_f_one_b(const GenerateOptions& options);

// The frame that generators with one stage on each rank fill: rank s holds stage s.
Schedule one_stage_per_rank(const GenerateOptions& options);

}  // namespace trestle::schedule::generators
