#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <vector>

#include "trestle/comm/process_card.h"
#include "trestle/launch/rank_environment.h"

namespace trestle::comm {

// The ranks' common store, with all of them there.
struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;    // in this process, where it is rank 0 that holds it
  c10::intrusive_ptr<c10d::Store> watched;  // another connection to it
  std::vector<ProcessCard> cards;           // by rank
};

// Meets the other ranks at the environment's address. Throws as init() says, on all ranks that are
// there to hear it.
Meeting meet(const launch::RankEnvironment& environment, std::chrono::milliseconds deadline);

}  // namespace trestle::comm
