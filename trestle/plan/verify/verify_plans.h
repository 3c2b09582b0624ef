#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/plan/search/strategy.h"

// Plans that are run, and their measured steps beside the predicted ones.
namespace trestle::plan {

// The peak of one device of a run.
struct MeasuredPeak {
  std::string device = {};  // "virtual:0"
  double bytes = 0;
};

// One run of a plan, in processes of its own.
struct MeasuredRun {
  double seconds = 0;                    // of a step: the median of those that were timed
  std::vector<MeasuredPeak> peaks = {};  // empty for devices without meters
  std::string error = {};                // why it failed; empty on success
};

struct VerifiedPlan {
  Strategy strategy = {};
  double predicted_seconds = 0;          // simulated
  double predicted_peak = 0;             // of the fullest device, bytes
  std::vector<double> runs = {};         // measured seconds of a step, one for each run
  std::vector<MeasuredPeak> peaks = {};  // the largest of all runs
  std::string error = {};                // why a run failed: it is not run again

  bool measured() const { return error.empty() && !runs.empty(); }
  double seconds() const;  // the median of the runs
  double fastest() const;
  double slowest() const;
  double spread() const;  // (slowest - fastest) / seconds()
  double peak() const;    // of the fullest device; 0 without a meter
  // predicted / measured - 1. Positive: the run is faster than predicted.
  double time_error() const;
  double peak_error() const;  // 0 without a meter
};

struct VerifyOptions {
  int rounds = 3;                          // runs of each plan, at least 1
  std::function<bool()> should_stop = {};  // between two runs
  // Called before each run with the number of the plan from 0, and the runs done and all.
  std::function<void(std::size_t plan, std::int64_t done, std::int64_t all)> progress = {};
};

struct Verification {
  std::vector<VerifiedPlan> plans = {};  // in the order of the prediction: the first is the pick
  int rounds = 0;
  bool finished = false;  // no run was stopped

  // The plan with the shortest measured step; nothing if none was measured.
  std::optional<std::size_t> best() const;
  // How much longer the pick's step is than the best measured one: a share. Nothing if the pick was
  // not measured.
  std::optional<double> regret() const;
  double mean_time_error() const;  // of the absolute errors of the measured plans; 0 for none
  double mean_peak_error() const;
  double widest_spread() const;
};

// Runs each plan once, one after the other, and then all again, so that other load on the machine
// falls on all of them alike. `run` measures a plan by its number, or returns nothing if it was
// stopped. A plan that fails does not stop the other plans. Throws UsageError for less than one
// round.
Verification verify_plans(std::vector<VerifiedPlan> plans, const VerifyOptions& options,
                          const std::function<std::optional<MeasuredRun>(std::size_t)>& run);

}  // namespace trestle::plan
