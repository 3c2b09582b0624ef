#pragma once

#include <utility>
#include <vector>

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/link.h"

namespace trestle::simulate {

// The bytes that one message or collective moves through the port of a host.
struct PortLoad {
  int host = 0;
  double sent = 0;      // bytes
  double received = 0;  // bytes
};

// The ports of all hosts. Each direction of a port carries one message at a time, in the order of
// the calls of hold().
class HostPorts {
 public:
  HostPorts(const Link& link, int hosts);

  // A message that can leave at `now` begins when all directions that it needs are free, and holds
  // each for its bytes / bandwidth. Returns when its last byte has left; it arrives the link's
  // latency later. Calls must be in the order of `now`. `what`: its name in a timeline, with the
  // rank that it belongs to.
  double hold(const std::vector<PortLoad>& loads, double now, const schedule::Action& what,
              int rank);
  // The same for a message that is too small to be drawn.
  double hold_shortly(const std::vector<PortLoad>& loads, double now);

  const std::vector<schedule::Crossing>& crossings() const { return crossings_; }

 private:
  // Begin and end.
  std::pair<double, double> take(const std::vector<PortLoad>& loads, double now);

  Link link_;
  std::vector<double> out_free_, in_free_;  // [host] the end of what holds it
  std::vector<schedule::Crossing> crossings_;
};

}  // namespace trestle::simulate
