#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/schedule/schedule.h"

// The schedule of a recipe: a name of schedule::known_schedules(), a table, or "auto". All
// functions throw UsageError for an unknown name, and what read_table() throws for a file.
namespace trestle::train {

// A table in PyTorch's spelling. Throws UsageError, with the file and the cell, for a file that is
// not a table and for one that validate_for_pipelines() refuses.
schedule::Schedule read_table(const std::filesystem::path& file);

// Whether 'schedule' is "auto" and the run that searches it has not begun (chosen_schedule.h). The
// functions below that need its stages throw UsageError then.
bool searches_schedule(const recipe::Recipe& recipe);

// The recipe's own table, or that of the file that ends in .csv.
std::optional<schedule::Schedule> table_of(const recipe::Recipe& recipe);

// The recipe with the table of its CSV file, so that a run needs the file no more.
recipe::Recipe with_table(recipe::Recipe recipe);
std::vector<std::string> rows_of(const schedule::Schedule& table);  // for 'table' in [pipeline]

// The stages of a rank; those of the rank that has most in a table.
int stages_per_rank(const recipe::Recipe& recipe);

// The stages of a pipeline on `ranks` ranks or devices: those of a balance or a table, or
// stages_per_rank() on each.
std::size_t stage_count(const recipe::Recipe& recipe, std::size_t ranks);

// [stage] its rank. Throws UsageError where the stages cannot be spread evenly.
std::vector<int> ranks_of_stages(const recipe::Recipe& recipe, std::size_t stages);

// The number of ranks or devices for these stages.
std::size_t rank_count(const recipe::Recipe& recipe, std::size_t stages);

// Whether it has, or with "auto" may have, I and W.
bool splits_backward(const recipe::Recipe& recipe);

// Whether all forwards come before the first backward, as a loss over the whole batch needs. With
// "auto" they do if the loss needs it.
bool all_forwards_first(const recipe::Recipe& recipe);

// The compute actions. A table of another number of micro-batches becomes GPipe on its ranks, as in
// a pipeline.
schedule::Schedule compute_actions(const recipe::Recipe& recipe, int stages, int micro_batches);

}  // namespace trestle::train
