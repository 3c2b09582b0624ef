#include "trestle/simulate/host_ports.h"

#include <algorithm>
#include <cstddef>

namespace trestle::simulate {

HostPorts::HostPorts(const Link& link, int hosts)
    : link_(link),
      out_free_(static_cast<std::size_t>(hosts), 0),
      in_free_(static_cast<std::size_t>(hosts), 0) {}

double HostPorts::hold(const std::vector<PortLoad>& loads, double now, const schedule::Action& what,
                       int rank) {
  const auto [begin, last] = take(loads, now);
  for (const PortLoad& load : loads) {
    if (load.sent <= 0) continue;
    crossings_.push_back({.host = load.host,
                          .rank = rank,
                          .action = what,
                          .begin = begin,
                          .end = begin + link_.seconds(load.sent)});
  }
  return last;
}

double HostPorts::hold_shortly(const std::vector<PortLoad>& loads, double now) {
  return take(loads, now).second;
}

std::pair<double, double> HostPorts::take(const std::vector<PortLoad>& loads, double now) {
  double begin = now;
  for (const PortLoad& load : loads) {
    const auto host = static_cast<std::size_t>(load.host);
    if (load.sent > 0) begin = std::max(begin, out_free_[host]);
    if (load.received > 0) begin = std::max(begin, in_free_[host]);
  }
  double last = begin;
  for (const PortLoad& load : loads) {
    const auto host = static_cast<std::size_t>(load.host);
    if (load.sent > 0) out_free_[host] = begin + link_.seconds(load.sent);
    if (load.received > 0) in_free_[host] = begin + link_.seconds(load.received);
    last = std::max(last, begin + link_.seconds(std::max(load.sent, load.received)));
  }
  return {begin, last};
}

}  // namespace trestle::simulate
