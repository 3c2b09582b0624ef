#include "trestle/simulate/collective_traffic.h"

#include <algorithm>
#include <map>

namespace trestle::simulate {

Collective traffic_of(CollectiveKind kind, double bytes,
                      const std::vector<std::vector<int>>& groups) {
  const bool twice = kind == CollectiveKind::AllReduce;
  std::map<int, double> sent;  // by host
  for (const auto& group : groups)
    for (std::size_t from = 0; from < group.size(); ++from)
      for (std::size_t to = 0; to < group.size(); ++to)
        if (group[from] != group[to])
          sent[group[from]] += (twice ? 2 : 1) * bytes / static_cast<double>(group.size());
  Collective traffic;
  for (const auto& [host, all] : sent) traffic.bytes = std::max(traffic.bytes, all);
  if (!sent.empty()) traffic.latencies = twice ? 3 : 2;
  return traffic;
}

Collective operator+(const Collective& first, const Collective& next) {
  return {.bytes = first.bytes + next.bytes,
          .latencies = first.latencies + next.latencies,
          .seconds = first.seconds + next.seconds};
}

}  // namespace trestle::simulate
