#pragma once

#include <optional>
#include <vector>

#include "trestle/data/loader.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/run_ranks.h"

// Comparisons and exchanges between the ranks of a run before its first step. All ranks call each
// function. Inside of the trainer. Not installed.
namespace trestle::train {

// Throws UsageError, with the first difference, where the ranks have different recipes.
void refuse_different_recipes(const recipe::Recipe& recipe, const RunRanks& ranks);

// A number that changes when other examples come first: a hash of the names of the first batch,
// which JSON stores exactly. It does not notice a new name outside of this batch, nor other values
// (Dataset::content_hash() does). Throws UsageError where the ranks read different data.
double data_mark_of(const std::optional<data::Batch>& first, std::int64_t examples,
                    const RunRanks& ranks);

// Each rank loads its own stages' weights from the file of [model]. Throws FormatError for a weight
// that no rank takes, or that is missing.
void load_weights_over_ranks(const recipe::Recipe& recipe, const Pipeline& pipeline,
                             const RunRanks& ranks, Progress& progress);

// Freezes what `frozen` in [optimizer] names. Throws UsageError for a pattern that names no
// parameter of any rank.
void freeze_over_ranks(const recipe::Recipe& recipe, Pipeline& pipeline, const RunRanks& ranks);

// Completes the plan of one rank with the devices, stages and parameters of all ranks.
void add_ranks(const std::vector<Device>& devices, const Pipeline& pipeline, const RunRanks& ranks,
               RunPlan* plan);

}  // namespace trestle::train
