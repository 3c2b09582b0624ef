#pragma once

#include <vector>

#include "trestle/base/units.h"
#include "trestle/schedule/schedule.h"
#include "trestle/simulate/costs.h"

// Places the weight gradients of a schedule by the costs of its stages.
namespace trestle::plan {

struct FillOptions {
  // The part of a W by which it may delay the rank's next F or I. 0 = W runs in idle time alone.
  double patience = 0;
  // The bytes of activations that a rank may keep: before an F beyond it, the rank runs the W that
  // it has left. 0 = no limit.
  Bytes activations = 0;
  // An I that its own W follows becomes one B where that is faster for the rank. The stage before
  // then gets its gradient later.
  bool joins = false;
};

// `order` is a table of compute actions; its F and its backwards keep their order on each rank.
// Every backward becomes I, and its W runs in the rank's next idle time that it fits into, the
// oldest first. `routes` are those of the lowered table. The cost is about constant for each
// action.
//
// This is the step of the search of Qi et al. 2023 (arXiv:2401.10241, section 3) that fills the
// bubbles with W, over any order of the other actions.
struct FilledSchedule {
  schedule::Schedule table;
  double seconds = 0;  // the step's, if each rank has its own cores and links
};
FilledSchedule fill_weight_grads(const schedule::Schedule& order,
                                 const std::vector<schedule::Route>& routes,
                                 const simulate::Costs& costs, const FillOptions& options);

}  // namespace trestle::plan
