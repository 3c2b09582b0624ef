#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/schedule.h"
#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

// Which schedule a pipeline should take, by simulation.
namespace trestle::plan {

// A model cut into stages for one placement.
struct PlacedStages {
  simulate::Costs costs;
  std::vector<schedule::Route> routes;  // the cut's, in the order of LowerOptions::routes
};

struct ScheduleQuestion {
  int ranks = 1;
  int micro_batches = 1;
  // The numbers of stages of a rank to try, where a schedule takes more than one.
  std::vector<int> stages_per_rank = {1, 2};
  // The stages for [stage] its rank; nothing if the model has fewer layers.
  std::function<std::optional<PlacedStages>(const std::vector<int>& rank_of_stage)> stages = {};
  Bytes memory = 0;                        // each rank's limit; 0 = none
  std::vector<Bytes> memory_of_rank = {};  // the same where ranks differ; empty = `memory`
  bool whole_batch_loss = false;
  schedule::Recompute recompute = schedule::Recompute::Never;
};

// One schedule, simulated.
struct SimulatedSchedule {
  std::string name;          // "zb_h1", or "auto" for one that the search has made
  schedule::Schedule table;  // compute actions only
  schedule::Timeline timeline;
  int stages_per_rank = 1;
  double seconds = 0;  // the step's
  Bytes peak = 0;      // the largest of the ranks
  int peak_rank = 0;
  bool fits = true;            // every rank into its limit
  std::string made_from = {};  // of "auto": the schedule whose order it has, and what is changed
};

struct ScheduleAnswer {
  // Every schedule of schedule::known_schedules() that takes these numbers: those that fit first,
  // the fastest first; then those that do not fit, the smallest first.
  std::vector<SimulatedSchedule> fixed = {};
  // Schedules that do not take them, with the reason.
  std::vector<std::pair<std::string, std::string>> refused = {};
  // The fastest that fits: one that the search has made, if it is at least 0.5 % faster than the
  // fastest fixed one that fits, or that one. Nothing: none fits.
  std::optional<SimulatedSchedule> best = {};
  int simulated = 0;  // schedules

  // The time and memory of `best` against the fastest and the smallest fixed schedule that fit, a
  // sentence each.
  std::vector<std::string> trades() const;
};

// Simulates every schedule with the costs of its stages, and a search beside them: for the forwards
// and input gradients of each, and for 1F1B's with more forwards before the first backward, each W
// runs where the rank waits (fill_weight_grads.h). The answer is therefore never worse than the
// best fixed schedule, by the simulator that draws timelines. Throws UsageError for numbers below
// 1, for a search that would take minutes, and where no schedule takes the numbers.
ScheduleAnswer find_schedule(const ScheduleQuestion& question);

}  // namespace trestle::plan
