#pragma once

// The tags of a pipeline's messages between ranks.
namespace trestle::pipeline {

enum MessageTag : int {
  plan_tag = 1,      // rank_link.cpp
  outcome_tag = 2,   // rank_link.cpp
  backward_tag = 3,  // rank_link.cpp
  clock_tag = 8,     // rank_timeline.cpp
  timing_tag = 9,    // profile_over_ranks.cpp
  // Messages between stages have this tag and those above (distributed_transport.cpp).
  first_stage_tag = 16,
};

}  // namespace trestle::pipeline
