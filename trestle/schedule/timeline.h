#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/schedule/schedule.h"

// What happened when: the simulator predicts one, the runtime records one, one viewer draws both.
namespace trestle::schedule {

struct Event {
  int rank = 0;
  Action action;
  double begin = 0;  // seconds since the step began
  double end =
      0;  // seconds; equal to begin where it took no time of the rank (a send in the simulator)
};

// Memory of one rank's device share over time.
struct MemorySample {
  int rank = 0;
  double time = 0;  // seconds since the step began
  Bytes bytes = 0;  // in use
};

struct Timeline {
  std::string title;  // "simulated" or "measured", and of what
  int stages = 0;
  int micro_batches = 0;
  int rank_count = 0;
  std::vector<int> rank_of_stage;
  std::vector<Route> routes;
  std::vector<Event> events;         // in order of begin for each rank
  std::vector<MemorySample> memory;  // in order of time for each rank; may be empty
  std::vector<Bytes> peak_bytes;     // for each rank; may be empty
};

// Seconds from the first begin to the last end.
double makespan(const Timeline& timeline);

// Seconds that rank spent in compute actions.
double busy(const Timeline& timeline, int rank);

// Idle under its two names, never one: 1 - busy / (ranks x makespan), and idle time divided by the
// ideal time (the mean busy time of a rank). For four GPipe stages with 16 micro-batches of equal
// cost: 3/19 and 3/16.
double idle_share_of_makespan(const Timeline& timeline);
double idle_share_of_ideal(const Timeline& timeline);

// For each rank the largest number of micro-batches whose activations were alive at once (forward
// begun, last of B or W not ended), counted in stages.
std::vector<int> peak_live_activations(const Timeline& timeline);

}  // namespace trestle::schedule
