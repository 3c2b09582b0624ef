#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "trestle/simulate/event_queue.h"
#include "trestle/simulate/host_ports.h"
#include "trestle/simulate/network.h"

namespace trestle::simulate {

// The collectives of data parallelism. Those of one stage and kind run one after the other, in the
// order in which they begin; all ranks of the stage begin them at the same time.
class CollectiveQueue {
 public:
  enum class Kind { Gather, Reduce };

  // Calls wake(rank) when a collective that is_done() was called for has ended.
  CollectiveQueue(const Network& network, EventQueue& events, HostPorts& ports,
                  std::function<void(int rank)> wake)
      : network_(network), events_(events), ports_(ports), wake_(std::move(wake)) {}

  // Adds a collective that begins later; `what` is the action that it is drawn as. Returns its
  // number.
  std::size_t add(const Collective& cost, int stage, Kind kind, const schedule::Action& what,
                  int rank);
  void begin(std::size_t number);
  // Otherwise its rank waits for it.
  bool is_done(std::size_t number);

 private:
  struct Job {
    Collective cost;
    std::pair<int, Kind> queue;
    schedule::Action what;
    int rank = 0;
    bool done = false, awaited = false;
  };

  void start(std::size_t number);
  void end(std::size_t number);

  const Network& network_;
  EventQueue& events_;
  HostPorts& ports_;
  std::function<void(int)> wake_;
  std::vector<Job> jobs_;
  std::map<std::pair<int, Kind>, std::deque<std::size_t>> queues_;  // the first one runs
};

}  // namespace trestle::simulate
