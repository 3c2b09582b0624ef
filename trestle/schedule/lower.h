#pragma once

#include <vector>

#include "trestle/schedule/schedule.h"

// From a table of compute actions to one that says everything the runtime does.
namespace trestle::schedule {

enum class Recompute { Never, ExceptLast, Always };

// "never", "except_last", "always".
Recompute parse_recompute(std::string_view text);  // throws UsageError
std::string_view to_string(Recompute mode);

// When a skip travels: as soon as it is made, or just before its consumer needs it.
enum class SkipSend { Eager, JustInTime };

struct LowerOptions {
  std::vector<Route> skips = {};  // every skip route that crosses stages
  std::vector<bool> main_lane =
      {};  // main_lane[s]: does stage s hand something to s + 1? empty = always
  std::vector<Recompute> recompute = {};  // for each stage; empty = never
  SkipSend skip_send = SkipSend::Eager;
};

// Adds communication, skip routes and recomputation. The recompute action stands before the receive
// of the gradient (it does not need it). `ExceptLast` spares the micro-batch that really comes last
// in the stage's forward order. Routes between stages on one rank get no SEND/RECV pair on a
// blocking transport: tensors pass inside the rank. The result passes validate().
Schedule lower(const Schedule& compute_only, const LowerOptions& options);

}  // namespace trestle::schedule
