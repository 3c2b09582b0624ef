#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/in_flight.h"
#include "trestle/comm/request.h"

// Requests carried out by a c10d backend. All of these wait, and throw what it throws.
namespace trestle::comm {

struct Engine {
  c10d::Backend& backend;
  int rank = 0;
  std::vector<int> ranks;  // numbers in the world
  std::chrono::milliseconds deadline{};
  InFlight& in_flight;
};

// Compares what the ranks are about to do. What is small enough is done with it: its numbers go along.
struct Compared {
  std::optional<std::string> difference = {};  // the same text on all ranks
  bool is_done = false;
};
Compared compare(const Engine& engine, Request& request);

// On CPU tensors. Sums and products are taken in the order of ranks, so that threads and processes
// give the same bits; Gloo's own all-reduce takes another order from three ranks on.
void carry_out(const Engine& engine, Request& request);

// On a GPU's tensors, by the engine's own collectives.
void carry_out_on_gpu(const Engine& engine, Request& request);

// Waits with the deadline, and throws where the wait was ended.
void wait_for(c10d::Work& work, std::chrono::milliseconds deadline);

}  // namespace trestle::comm
