#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trestle/train/chart.h"
#include "trestle/train/sweep.h"

// What a sweep leaves behind for people and for other programs.
namespace trestle::train {

// A row for each point; times in seconds. What was not measured is empty.
//
//     recipe,pipeline.split_size,runs,seconds,fastest,slowest,predicted,optimizer,error
std::string to_csv(const SweepResult& result);

// The same as one object, with each run's time.
std::string to_json(const SweepResult& result);

// One object on a line, for --json: a point of a plan, a run that was measured or failed, the end.
std::string plan_event(const SweepRow& row, int runs);
std::string run_event(const SweepRow& row, std::int64_t done, std::int64_t all);
std::string done_event(const SweepResult& result);

// Curves over the first axis of numbers with more than one value, a line for each combination of
// everything else; bars where there is no such axis.
Chart chart_of(const SweepResult& result);

// sweep.csv, sweep.json, sweep.svg and sweep.png in the folder; returns their paths.
std::vector<std::filesystem::path> write_sweep_files(const SweepResult& result,
                                                     const std::filesystem::path& folder);

}  // namespace trestle::train
