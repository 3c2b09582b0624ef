#pragma once

#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/schedule/schedule.h"

// What a step costs, measured or assumed; times in seconds for one micro-batch, memory in bytes.
namespace trestle::simulate {

struct StageCost {
  double forward = 1;           // F with its graph
  double backward = 2;          // B = I + W
  double input_grad = 1;        // I
  double weight_grad = 1;       // W
  double recompute = 1;         // R: F again, with its graph
  double forward_no_graph = 1;  // F when it will be recomputed
  double norm = 0;              // of the stage's gradients, before an optimizer step
  double step = 0;              // optimizer step
  // How much faster an action is that was lent other ranks' cores (Action::threads is not 0).
  double lent_speed_up = 1;
  Bytes persistent = 0;  // parameters, optimizer state, buffers
  Bytes gradients = 0;   // made by the stage's first B (or W)
  Bytes saved = 0;       // what one micro-batch's graph keeps from F (or R) to the end of B or W
  Bytes kept_for_recompute = 0;  // what F keeps when it will be recomputed: the stage's inputs
  Bytes recompute_excess = 0;    // what R keeps beyond `saved`: the buffers' values meanwhile
  Bytes transient_forward = 0;   // the most F needs beyond what it keeps, while it runs
  // The same for F when it will be recomputed, and for R; at least as much as transient_forward.
  Bytes transient_no_graph = 0;
  Bytes transient_recompute = 0;
  Bytes transient_backward = 0;  // the most B needs beyond what was kept, while it runs
  // The same for the stage's first B (or W), which adds the gradients as it gives the graph up;
  // 0 = transient_backward + gradients, as if it gave nothing up before its end.
  Bytes transient_first_backward = 0;
  // A loss over the whole batch, taken once, in the stage's first B: the most it needs while it is
  // computed, and what it leaves from then to the end of the step (the outputs' gradients). 0 for a
  // loss that adds up, whose share of a micro-batch is part of B.
  Bytes loss_transient = 0;
  Bytes loss_kept = 0;
  Bytes output_kept = 0;  // what each F leaves to the end of the step: for such a loss its output
};

struct RouteCost {
  double seconds = 0;  // one micro-batch's transfer, in either direction
  Bytes bytes = 0;     // one micro-batch's tensors
  Bytes saved = 0;  // of these, what the sender's graph keeps anyway (and `saved` of its stage has)
  // What the sender of activations holds beyond `bytes` while they wait: views of larger memory.
  Bytes activation_excess = 0;
};

// Where waits what is under way? On the receiver, in buffers of its own (Push), or on the sender until
// the receiver is ready to take it, as between the devices of one process (Pull). Between ranks
// (Ahead): on the sender until it has gone, as has all that the sender sent before, and on the receiver,
// which fetches two messages before it asks for them.
enum class Transport { Push, Pull, Ahead };

// Does each rank go on by itself, or does one thread of control walk them all, each rank in turn as
// far as it gets (a pipeline on plain CPUs)? Then no two actions overlap.
enum class Control { EachRank, OneThread };

struct Costs {
  std::vector<StageCost> stages;  // one for each stage
  std::vector<RouteCost> routes;  // one for each route of the lowered schedule; empty = free
  Transport transport = Transport::Push;
  Control control = Control::EachRank;
  // For each stage the number of the device it is on, from 0: stages on one device share its
  // memory. Empty = each rank has a device of its own.
  std::vector<int> device_of_stage = {};
  // Does a step begin with the gradients of the one before and add to them? Otherwise its first
  // backwards make them.
  bool gradients_at_start = false;
};

// Throws UsageError unless a cost is a time that sums can be made of: 0 to longest_time seconds.
// `of` says whose cost it is, for the message.
void check_time(double seconds, const std::string& of);
inline constexpr double longest_time = 1e15;  // thirty million years

}  // namespace trestle::simulate
