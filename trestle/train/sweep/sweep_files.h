#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trestle/train/sweep/sweep.h"
#include "trestle/view/chart/chart.h"

// The result files of a sweep.
namespace trestle::train {

// CSV with a row for each point; times in seconds. Cells that were not measured are empty.
//
//     recipe,pipeline.split_size,runs,seconds,fastest,slowest,predicted,optimizer,error
std::string to_csv(const SweepResult& result);

// The same as one JSON object, with the time of each run.
std::string to_json(const SweepResult& result);

// One JSON object on a line, for --json: a point of the plan, a run that was measured or failed, or
// the end.
std::string plan_event(const SweepRow& row, int runs);
std::string run_event(const SweepRow& row, std::int64_t done, std::int64_t all);
std::string done_event(const SweepResult& result);

// Curves over the first axis of numbers with more than one value, with a line for each combination
// of the other axes; bars where there is no such axis.
view::Chart chart_of(const SweepResult& result);

// The paths of sweep.csv, sweep.json, sweep.svg and sweep.png in the folder.
std::vector<std::filesystem::path> sweep_files(const std::filesystem::path& folder);

// Writes sweep.csv, sweep.json, sweep.svg and sweep.png into the folder; returns their paths.
std::vector<std::filesystem::path> write_sweep_files(const SweepResult& result,
                                                     const std::filesystem::path& folder);

}  // namespace trestle::train
