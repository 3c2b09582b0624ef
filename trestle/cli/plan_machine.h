#pragma once

#include <string>
#include <vector>

#include "trestle/plan/machine/machine.h"

// --machine of `trestle plan`.
namespace trestle::cli {

struct MachineArgument {
  std::string name = {};           // a file, or a name in machines/
  bool for_other_machine = false;  // --for-other-machine
};

// Reads the machine. Throws what read_machine() throws, and UsageError for a file that was measured
// on another machine unless the argument allows it.
plan::Machine read_planned_machine(const MachineArgument& argument);

// The machine files in the folders that --machine searches, each in words for `trestle doctor`:
// "mine (measured here on 2026-01-31)". Files of other kinds are left out.
std::vector<std::string> known_machines();

}  // namespace trestle::cli
