#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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
  // Seconds; equal to begin where it took no time of the rank (a send in the simulator).
  double end = 0;
};

// Memory of one rank's stages over time.
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
  // The number of each stage's device, and for each device the most that all stages on it held
  // together; may be empty.
  std::vector<int> device_of_stage;
  std::vector<Bytes> device_peak_bytes;
};

// Seconds from the first begin to the last end.
double makespan(const Timeline& timeline);

// Seconds that each rank spent in compute actions.
std::vector<double> busy(const Timeline& timeline);

// Idle under its two names, never one: 1 - busy / (ranks x makespan), and idle time divided by the
// ideal time (the mean busy time of a rank). For four GPipe stages with 16 micro-batches of equal
// cost: 3/19 and 3/16.
double idle_share_of_makespan(const Timeline& timeline);
double idle_share_of_ideal(const Timeline& timeline);

// Which events belong together: where a stage's forward and backward of a micro-batch stand among
// Timeline::events. Made once for a timeline, of which it keeps no reference; asking costs constant
// time. Takes 16 bytes for each pair of a stage and a micro-batch up to the largest that occur.
class EventIndex {
 public:
  explicit EventIndex(const Timeline& timeline);

  int stages() const { return stages_; }                // the largest that occurs, plus one
  int micro_batches() const { return micro_batches_; }  // likewise

  // Nothing where there is none, also for stages and micro-batches that do not occur. An overlapped
  // pair is the forward of one and the backward of another. Of several the first counts.
  std::optional<std::size_t> forward(int stage, int micro_batch) const;
  std::optional<std::size_t> backward(int stage, int micro_batch) const;     // B, or I where split
  std::optional<std::size_t> weight_grad(int stage, int micro_batch) const;  // W
  std::optional<std::size_t> recompute(int stage, int micro_batch) const;    // R

  // The event that gives the activations up: W where there is one, or else the backward.
  std::optional<std::size_t> last_backward(int stage, int micro_batch) const;

 private:
  enum Part { ForwardPart, BackwardPart, WeightGradPart, RecomputePart, PartCount };

  std::size_t slot(Part part, int stage, int micro_batch) const;
  std::optional<std::size_t> find(Part part, int stage, int micro_batch) const;

  int stages_ = 0;
  int micro_batches_ = 0;
  std::vector<std::int32_t> events_;  // [stage][micro-batch][part]; -1 = none
};

// How long one micro-batch's activations were alive on a stage: from the begin of its forward to
// the end of its last B or W; to infinity where there is none.
struct ActivationLife {
  int rank = 0;
  double begin = 0;
  double end = 0;
};
std::vector<ActivationLife> activation_lives(const Timeline& timeline);

// For each rank the largest number of micro-batches whose activations were alive at once, counted
// in stages.
std::vector<int> peak_live_activations(const Timeline& timeline);

}  // namespace trestle::schedule
