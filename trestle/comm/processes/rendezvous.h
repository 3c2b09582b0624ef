#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <vector>

#include "trestle/comm/processes/process_identity.h"
#include "trestle/launch/rank_environment.h"

namespace trestle::comm {

// The store that all ranks of a world have joined.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;         // hosted by rank 0 or the launcher
  c10::intrusive_ptr<c10d::Store> watched;       // a second connection to it, for the watcher
  std::vector<ProcessIdentity> identities = {};  // by rank
  // How many times all ranks were restarted: the most of all ranks, because a launcher whose ranks
  // failed before they met has restarted them more often than another machine's.
  int restart = 0;
  // The address of rank 0's machine that another machine sees; empty with one machine, and if the
  // launcher hosts the store.
  std::string address_of_rank_zero = {};
};

// Waits for all ranks at the environment's address. Throws as init() does, on all ranks that have
// arrived.
Rendezvous rendezvous(const launch::RankEnvironment& environment,
                      std::chrono::milliseconds deadline);

}  // namespace trestle::comm
