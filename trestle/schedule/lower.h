#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/schedule/schedule.h"

// Adds communication, skips and recomputation to a table of compute actions.
namespace trestle::schedule {

enum class Recompute { Never, ExceptLast, Always };

// "never", "except_last" or "always". Throws UsageError for any other word.
Recompute parse_recompute(std::string_view name);
std::string_view to_string(Recompute mode);
std::vector<std::string> recompute_names();

// When a skip is sent. Eager: as soon as it is produced; it then waits on the consumer's rank.
// JustInTime: as late as possible without delaying the consumer, if all stages take the same time;
// it then waits on the producer's rank, and a slow link lengthens the makespan. A skip's gradient
// is always sent at once.
enum class SkipSend { Eager, JustInTime };

struct LowerOptions {
  // Every route between two stages, in the order of Schedule::routes: the main lane's from the
  // front to the end of the pipeline, then the skips. Nothing = a main lane between all neighbours
  // and no skips.
  std::optional<std::vector<Route>> routes = std::nullopt;
  std::vector<Recompute> recompute = {};  // for each stage; empty = never
  SkipSend skip_send = SkipSend::Eager;
};

// Adds communication, skip routes and recomputation to a table of compute actions. Throws
// UsageError if the table is invalid or the options do not fit it. The result passes validate().
//
// Routes: actions of skips carry the index of their route. SEND_F, RECV_F, SEND_B and RECV_B, which
// PyTorch has too, do not (RouteTable in routes.h finds the route of any of them). A route between
// stages of one rank has no SEND and no RECV: the consumer uses the producer's tensors.
//
// Order: every rank's list is a part of one common order of all transfers and computations, so
// ranks cannot deadlock even if a send blocks until it is received. A SEND is right after the
// action that produces its tensors. Its RECV is where a blocking transport must receive, which may
// be well before the action that uses it. A transport that buffers in-flight messages, such as the
// local one, may delay the wait until just before that action.
//
// Recompute: R is right before its backward, so that a stage never holds two recomputed graphs
// (unless the schedule delays W). It is after the sends that are ready by then, and before the
// receives of its gradient unless that gradient has arrived already. `ExceptLast` does not
// recompute the last micro-batch in the stage's forward order.
//
// GPipe with two stages, one micro-batch and recompute {Always, Never}:
//
//     rank 0   0F0 0SEND_F0 0R0 0RECV_B0 0B0
//     rank 1   1RECV_F0 1F0 1B0 1SEND_B0
Schedule lower(const Schedule& compute_only, const LowerOptions& options);

}  // namespace trestle::schedule
