#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/base/traffic.h"
#include "trestle/base/units.h"
#include "trestle/schedule/schedule.h"

// The events of a step with their times. The simulator predicts a timeline, the runtime records
// one, and one viewer draws both.
namespace trestle::schedule {

struct Event {
  int rank = 0;
  Action action;
  double begin = 0;  // seconds since the step began
  // Seconds; equal to begin if the event took none of its rank's time (a send in the simulator).
  double end = 0;
};

// Memory of one rank's stages over time.
struct MemorySample {
  int rank = 0;
  double time = 0;  // seconds since the step began
  Bytes bytes = 0;  // in use
};

// A message or collective that leaves a host through its link to all other hosts.
struct Crossing {
  int host = 0;
  int rank = 0;   // that sends it, or that takes part in the collective
  Action action;  // the SEND, or the action that waits for the collective
  double begin = 0;
  double end = 0;  // seconds since the step began; equal to begin if the link is unlimited
};

// A collective of the ranks that split a layer, inside of a compute action of the layer's stage.
// Until `wait` it is hidden behind the action's computation; after that it is exposed.
struct TensorMessage {
  int rank = 0;
  MessageKind kind = MessageKind::AllReduce;
  Bytes bytes = 0;  // of the whole tensor
  double begin = 0;
  double wait = 0;
  double end = 0;  // seconds since the step began

  double hidden() const { return wait - begin; }
  double exposed() const { return end - wait; }
};

struct Timeline {
  std::string title;  // "simulated gpipe"
  int stages = 0;
  int micro_batches = 0;
  int rank_count = 0;
  std::vector<int> rank_of_stage;
  std::vector<Route> routes;
  std::vector<Event> events;         // in order of begin for each rank
  std::vector<MemorySample> memory;  // in order of time for each rank; may be empty
  std::vector<Bytes> peak_bytes;     // for each rank; may be empty
  // The number of each stage's device, and each device's peak over all its stages; may be empty.
  std::vector<int> device_of_stage;
  std::vector<Bytes> device_peak_bytes;
  // The host of each rank, and what leaves the hosts; empty for ranks on one host.
  std::vector<int> host_of_rank = {};
  std::vector<Crossing> crossings = {};             // in order of begin for each host
  std::vector<TensorMessage> tensor_messages = {};  // in order of begin for each rank
  // The number of each rank in the world, for a pipeline that is one of several; may be empty.
  std::vector<int> world_ranks = {};
  // Measured steps with I and W: names of layers whose backward runs whole in I, because it cannot
  // be cut (pipeline/execute/split_backward.h).
  std::vector<std::string> whole_layers = {};
};

// The hosts of the timeline's ranks, each once, in ascending order.
std::vector<int> hosts_of(const Timeline& timeline);

// Adds to a measured timeline what crosses between these hosts: a message from its SEND to the end
// of its RECV, which is when it was used, and a collective while its rank waits for it.
void add_measured_crossings(Timeline* timeline, std::vector<int> host_of_rank);

// "rank 2": the rank's number in the world, for the names of rows.
std::string rank_name(const Timeline& timeline, int rank);

// The messages of a rank's tensor group together. `hidden` is at most the time for which they
// travelled beside computation: a message may arrive before its rank waits for it.
struct TensorTimes {
  std::int64_t messages = 0;
  double hidden = 0;
  double exposed = 0;
};
TensorTimes tensor_times(const Timeline& timeline, int rank);

// "REDUCE" for a sum, whole or scattered; "GATHER"; "EXCHANGE".
std::string_view tensor_message_name(MessageKind kind);

// Seconds from the first begin to the last end.
double makespan(const Timeline& timeline);

// Seconds that each rank spent in compute actions.
std::vector<double> busy(const Timeline& timeline);

// Idle time in both of its usual definitions: 1 - busy / (ranks x makespan), and idle time divided
// by the ideal time (the mean busy time of a rank). Four GPipe stages with 16 micro-batches of
// equal cost have 3/19 and 3/16.
double idle_share_of_makespan(const Timeline& timeline);
double idle_share_of_ideal(const Timeline& timeline);

// The two bubbles, in seconds. Makespan: the makespan without the busy time of the busiest rank.
// Span (Qi et al. 2023): the longest time in which a rank waits between its first and its last
// compute action. Zero-bubble schedules have no span bubble, and the ramp of the first forwards in
// their makespan bubble.
double makespan_bubble(const Timeline& timeline);
double span_bubble(const Timeline& timeline);

// Finds the events of a stage and a micro-batch in Timeline::events in constant time. It keeps no
// reference to the timeline. It takes 16 bytes for each pair of a stage and a micro-batch, up to
// the largest numbers in the timeline.
class EventIndex {
 public:
  explicit EventIndex(const Timeline& timeline);

  int stages() const { return stages_; }                // the largest in the timeline, plus one
  int micro_batches() const { return micro_batches_; }  // likewise

  // Nothing if there is no such event. An overlapped pair counts as the forward of one micro-batch
  // and the backward of another. If there are several, the first one counts.
  std::optional<std::size_t> forward(int stage, int micro_batch) const;
  std::optional<std::size_t> backward(int stage, int micro_batch) const;     // B, or I if split
  std::optional<std::size_t> weight_grad(int stage, int micro_batch) const;  // W
  std::optional<std::size_t> recompute(int stage, int micro_batch) const;    // R

  // The event that frees the activations: W if there is one, else the backward.
  std::optional<std::size_t> last_backward(int stage, int micro_batch) const;

 private:
  enum Part { ForwardPart, BackwardPart, WeightGradPart, RecomputePart, PartCount };

  std::size_t slot(Part part, int stage, int micro_batch) const;
  std::optional<std::size_t> find(Part part, int stage, int micro_batch) const;

  int stages_ = 0;
  int micro_batches_ = 0;
  std::vector<std::int32_t> events_;  // [stage][micro-batch][part]; -1 = none
};

// The lifetime of a micro-batch's activations on a stage: from the begin of its forward to the end
// of its last B or W, or infinity without one.
struct ActivationLife {
  int rank = 0;
  double begin = 0;
  double end = 0;
};
std::vector<ActivationLife> activation_lives(const Timeline& timeline);

// For each rank the largest number of micro-batches with live activations, counted once for each
// stage.
std::vector<int> peak_live_activations(const Timeline& timeline);

}  // namespace trestle::schedule
