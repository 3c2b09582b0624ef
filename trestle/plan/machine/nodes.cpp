#include "trestle/plan/machine/nodes.h"

#include <string>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {

Machine on_nodes(Machine machine, int devices, int nodes) {
  if (devices < 1 || nodes < 1)
    throw UsageError(text(counted(devices, "device"), " on ", counted(nodes, "node")),
                     {.hint = "Give numbers from 1."});
  const auto legal = [&](int count) {
    return devices % count == 0 && devices / count <= machine.devices_per_node;
  };
  if (legal(nodes)) {
    machine.devices_per_node = devices / nodes;
    return machine;
  }
  std::vector<std::string> near;
  for (int below = nodes - 1; below >= 1 && near.empty(); --below)
    if (legal(below)) near.push_back(text(below));
  for (int above = nodes + 1; above <= devices; ++above)
    if (legal(above)) {
      near.push_back(text(above));
      break;
    }
  const bool divides = devices % nodes == 0;
  throw UsageError(divides ? text(devices / nodes, " devices in each of ", counted(nodes, "node"),
                                  " are more than the ", machine.devices_per_node, " of a node of ",
                                  machine.name)
                           : text(nodes, " nodes do not divide ", devices, " devices"),
                   {.hint = text("Nearest that do: ", join(near, " and "), " nodes.")});
}

}  // namespace trestle::plan
