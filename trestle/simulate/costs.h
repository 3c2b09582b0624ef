#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/traffic.h"
#include "trestle/base/units.h"
#include "trestle/schedule/schedule.h"
#include "trestle/simulate/network.h"

// The costs of a step, measured or assumed. Times are in seconds for one micro-batch, memory is in
// bytes.
namespace trestle::simulate {

struct StageCost {
  double forward = 1;           // F with its graph
  double backward = 2;          // B = I + W
  double input_grad = 1;        // I
  double weight_grad = 1;       // W
  double recompute = 1;         // R: F again, with its graph
  double forward_no_graph = 1;  // F when it will be recomputed
  double norm = 0;              // the norm of the stage's gradients
  double step = 0;              // optimizer step
  double unshard = 0;           // UNSHARD: all-gathers the stage's parameters before its first F
  double reduce = 0;            // REDUCE_GRAD: what is left of the reduction after the last B
  // The speed-up of an action that runs with other ranks' cores (Action::threads is not 0).
  double lent_speed_up = 1;
  Bytes persistent = 0;  // parameters, optimizer state, buffers
  Bytes gradients = 0;   // allocated by the stage's first B (or W)
  Bytes saved = 0;       // what one micro-batch's graph keeps from F (or R) to the end of B or W
  Bytes kept_for_recompute = 0;  // what F keeps when it will be recomputed: the stage's inputs
  Bytes recompute_excess = 0;    // what R keeps beyond `saved`: the buffers' values from before it
  Bytes transient_forward = 0;   // F's peak beyond what it keeps
  // The same for an F that will be recomputed, and for R; at least transient_forward.
  Bytes transient_no_graph = 0;
  Bytes transient_recompute = 0;
  // The part of `saved` that is left from I to W, with the gradients that W needs. Nothing = all of
  // it, and no gradients.
  std::optional<Bytes> kept_for_weights = std::nullopt;
  Bytes transient_backward = 0;  // B's peak beyond what was kept, and that of I
  // The same for the stage's first B (or W), which allocates gradients while it frees the graph. 0
  // = transient_backward + gradients, as if it freed nothing before its end.
  Bytes transient_first_backward = 0;
  // W's peak beyond what I left, and that of the stage's first W, which allocates gradients.
  // Nothing = as for B; for the first W alone, transient_weight_grad + gradients.
  std::optional<Bytes> transient_weight_grad = std::nullopt;
  std::optional<Bytes> transient_first_weight_grad = std::nullopt;
  // For a whole-batch loss, which the stage's first B computes: its peak, and what stays from then
  // until the end of the step (the gradients of the outputs). 0 for an additive loss, which is part
  // of B.
  Bytes loss_transient = 0;
  Bytes loss_kept = 0;
  Bytes output_kept = 0;  // F's output, kept until the end of the step for such a loss
};

// The messages that tensor ranks exchange inside of a stage's actions, in their order. Their
// exposed seconds are part of StageCost's times: set_message_times().
struct StageMessages {
  std::vector<LayerMessage> forward = {};   // in F and R
  std::vector<LayerMessage> backward = {};  // in B, or in I
};

struct RouteCost {
  // One micro-batch's transfer, in either direction. Costs::network replaces it between two hosts.
  double seconds = 0;
  Bytes bytes = 0;  // one micro-batch's tensors
  Bytes saved = 0;  // the part that the sender's graph keeps too (counted in StageCost::saved)
  // Sent activations that are views keep larger memory: the bytes beyond `bytes` until they leave.
  Bytes activation_excess = 0;
};

// A parameter that one stage owns and another uses. The other stage has a copy: its value arrives
// before the stage's first F. The copy's gradient leaves after the stage's last B, and arrives
// before the last B of an earlier owner, or before NORM of a later one. The copy's bytes are also
// in StageCost::persistent and gradients of its stage.
struct TieCost {
  int owner = 0;        // stage
  int copy = 0;         // stage
  Bytes bytes = 0;      // of the value, and of the gradient
  bool frozen = false;  // there is no gradient
  // One message, in either direction. Costs::network replaces it between two hosts.
  double seconds = 0;
};

// The place where in-flight messages are buffered. Push: on the receiver, in buffers of its own.
// Pull: on the sender until the receiver takes them, as between the devices of one process.
// Prefetch, between ranks: on the sender until this message and all earlier ones have arrived, and
// on the receiver, which fetches up to two messages ahead.
enum class TransferMode { Push, Pull, Prefetch };

// Whether ranks run concurrently, or one thread runs all of them, each in turn as far as it gets,
// as a pipeline on plain CPUs does, and one of several replicas whose stages share a device. With
// one thread no two actions overlap.
enum class Concurrency { EachRank, OneThread };

// Ranks on one machine whose actions share its cores, as virtual devices and ranks on CPUs do.
// While more actions run than there are cores, each has an equal share of them: processor sharing
// (Kleinrock, Time-shared Systems, 1967).
struct SharedCores {
  double cores = 1;  // of the machine, over the threads of an action
  // The ranks that run each action at the same time: the replicas times the tensor ranks.
  double ranks_at_once = 1;
  // How many times as long an action takes while all cores are busy, from 1 to `cores`: cores share
  // the memory's bandwidth. With fewer busy cores it grows in proportion to them.
  double slowdown = 1;

  // The speed of each of `actions` actions that run at the same time; 1 is that of an action alone.
  double speed(double actions) const;
};
inline constexpr double most_cores = 1e9;

struct Costs {
  std::vector<StageCost> stages;  // one for each stage
  std::vector<RouteCost> routes;  // one for each route of the lowered schedule; empty = free
  std::vector<TieCost> ties = {};
  std::vector<StageMessages> messages = {};  // one for each stage; empty = no layer is split
  TransferMode transfer_mode = TransferMode::Push;
  Concurrency concurrency = Concurrency::EachRank;
  // For each stage the number of its device, from 0. Stages on one device share its memory. Empty =
  // each rank has its own device.
  std::vector<int> device_of_stage = {};
  // True if the step accumulates into the gradients of the previous one. Otherwise its first
  // backwards allocate them.
  bool gradients_at_start = false;
  // The hosts of the ranks. Nothing = one host, or each message has a link of its own.
  std::optional<Network> network = {};
  // Nothing = each rank has its own core. Times are then those of an action that runs alone. Not
  // together with `network`.
  std::optional<SharedCores> shared_cores = {};
};

// Sets how long each message of a stage takes, `seconds(message)`, and adds what is exposed to the
// times of the stage's actions, which were measured without messages.
void set_message_times(const std::function<double(const LayerMessage&)>& seconds,
                       StageMessages* messages, StageCost* cost);

// Throws UsageError unless `seconds` is between 0 and longest_time. `of` names the cost's owner in
// the message.
void check_time(double seconds, const std::string& of);
inline constexpr double longest_time = 1e15;  // thirty million years

}  // namespace trestle::simulate
