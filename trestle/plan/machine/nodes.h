#pragma once

#include "trestle/plan/machine/machine.h"

namespace trestle::plan {

// The machine when `devices` devices lie in `nodes` nodes, with the same number in each. The link
// between nodes is still that of a whole node. Throws UsageError for numbers below 1. It also
// throws, with the nearest numbers of nodes, if they do not divide the devices, or if a node would
// have more devices than the machine has.
//
//   const plan::Machine half = plan::on_nodes(plan::read_machine("a100-8-per-node"), 8, 2);
//   half.devices_per_node;  // 4
Machine on_nodes(Machine machine, int devices, int nodes);

}  // namespace trestle::plan
