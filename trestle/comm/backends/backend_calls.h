#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/backends/in_flight.h"
#include "trestle/comm/request.h"

// Executes requests on a c10d backend. All functions wait, and throw what the backend throws.
namespace trestle::comm {

struct BackendContext {
  c10d::Backend& backend;
  int rank = 0;
  std::vector<int> ranks;  // the group's ranks, by their numbers in the world
  std::chrono::milliseconds deadline{};
  InFlight& in_flight;
};

// Compares the ranks' requests. A small collective is executed with the comparison: its data travel
// in the same message.
struct Compared {
  std::optional<std::string> difference = {};  // the same text on all ranks
  bool is_done = false;
};
Compared compare(const BackendContext& context, Request& request);

// Executes a request on CPU tensors. Reductions follow the order of reduction.h, so that ranks that
// are threads and ranks that are processes give the same bits. Gloo's own all-reduce uses another
// order from three ranks on.
void execute(const BackendContext& context, Request& request);

// Executes a request on GPU tensors with the backend's own collectives.
void execute_on_gpu(const BackendContext& context, Request& request);

// Whether an exception of the backend means that a wait took too long.
bool is_timeout(const std::exception& error);

// Waits, at most until the deadline; throws if the wait was aborted.
void wait_for(c10d::Work& work, std::chrono::milliseconds deadline);

}  // namespace trestle::comm
