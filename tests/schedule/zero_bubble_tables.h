#pragma once

#include <algorithm>

#include "trestle/schedule/action.h"
#include "trestle/schedule/schedule.h"

// The two handcrafted orders of Qi et al. 2023, "Zero Bubble Pipeline Parallelism".
namespace trestle::schedule::tables {

enum class ZeroBubble {
  H1,  // 1F1B's warm-up; stage s delays W by s micro-batches. Keeps the activations of 1F1B.
  H2   // 2(p - s) - 2 warm-up forwards; W delayed by 2s micro-batches. Keeps about twice that.
};

inline Schedule zero_bubble(ZeroBubble which, int stages, int micro_batches) {
  Schedule schedule;
  schedule.name = which == ZeroBubble::H1 ? "zb-h1" : "zb-h2";
  schedule.stages = stages;
  schedule.micro_batches = micro_batches;
  for (int stage = 0; stage < stages; ++stage) {
    const int ahead = stages - 1 - stage;
    const int warm_up = std::min(micro_batches, which == ZeroBubble::H1 ? ahead : 2 * ahead);
    const int late = which == ZeroBubble::H1 ? stage : 2 * stage;
    std::vector<Action> actions;
    int forwards = 0;
    int weights = 0;
    while (forwards < warm_up) actions.push_back(forward(stage, forwards++));
    for (int i = 0; i < micro_batches; ++i) {
      if (forwards < micro_batches) actions.push_back(forward(stage, forwards++));
      actions.push_back(input_grad(stage, i));
      if (i >= late) actions.push_back(weight_grad(stage, weights++));
    }
    while (weights < micro_batches) actions.push_back(weight_grad(stage, weights++));
    schedule.ranks.push_back(actions);
    schedule.rank_of_stage.push_back(stage);
  }
  return schedule;
}

}  // namespace trestle::schedule::tables
