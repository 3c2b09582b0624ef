#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/schedule/schedule.h"

// From a table of compute actions to one that says everything the runtime does.
namespace trestle::schedule {

enum class Recompute { Never, ExceptLast, Always };

// "never", "except_last" or "always". Throws UsageError for another word.
Recompute parse_recompute(std::string_view name);
std::string_view to_string(Recompute mode);
std::vector<std::string> recompute_names();

// When a skip travels: as soon as it is made (it then waits on the consumer's rank), or as late as
// does not keep the consumer waiting if all stages take the same time (it then waits on the
// producer's rank, and a slow link shows in the makespan). Its gradient always travels at once.
enum class SkipSend { Eager, JustInTime };

struct LowerOptions {
  // Every route between two stages, in the order that Schedule::routes will have: the main lane's
  // from the front to the end of the pipeline, then the skips. Nothing = no skips, and a main lane
  // between all neighbours.
  std::optional<std::vector<Route>> routes = std::nullopt;
  std::vector<Recompute> recompute = {};  // for each stage; empty = never
  SkipSend skip_send = SkipSend::Eager;
};

// Adds communication, skip routes and recomputation to a table that holds neither. Throws
// UsageError if the table is not valid or the options do not fit it. The result passes validate().
//
// Routes: the actions of skips carry their route's index; SEND_F, RECV_F, SEND_B and RECV_B, which
// PyTorch writes too, do not (RouteTable in routes.h finds the route of any of them). Stages on one
// rank keep their route but get no SEND and no RECV: the consumer reads what is there.
//
// Order: all transfers and computations are put into one order that every rank's list follows, so
// ranks cannot deadlock even where a send blocks until it is received. A SEND stands right after
// the action that makes its tensors. Its RECV stands where a blocking transport must take it, which
// may be well before the action that uses it: a transport with room for what is under way (the
// local one) should treat RECV as an announcement and wait in front of the consumer.
//
// Recompute: R stands right before its backward, so that a stage never holds two recomputed graphs
// (except where a schedule delays W), behind the sends that are ready by then, and ahead of the
// receives of its gradient, unless the gradient is there already when R's turn comes. `ExceptLast`
// spares the micro-batch that really comes last in the stage's forward order.
//
// GPipe with two stages, one micro-batch and recompute {Always, Never}:
//
//     rank 0   0F0 0SEND_F0 0R0 0RECV_B0 0B0
//     rank 1   1RECV_F0 1F0 1B0 1SEND_B0
Schedule lower(const Schedule& compute_only, const LowerOptions& options);

}  // namespace trestle::schedule
