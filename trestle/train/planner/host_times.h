#pragma once

#include <string>

#include "trestle/plan/machine/machine.h"
#include "trestle/train/layer_costs.h"
#include "trestle/train/run_ranks.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Measures what messages between ranks of this machine and the recipe's optimizer take, in about a
// second: `ranks` ranks, but at most 8, that are threads add up small and large tensors on the CPU,
// and the optimizer steps 4 MiB of parameters. One rank alone has no messages. `cores` > 0: the
// ranks share this number of cores. Messages of more ranks than cores are then divided by what they
// share, and the slowdown is that of one layer on all cores at once.
HostTimes measure_host_times(const recipe::Recipe& recipe, int ranks, int cores = 0);

struct CountedRanks {
  int ranks = 1;
  int cores = 0;  // as above
};

// The same from a machine file: its optimizer, and its tables of messages inside one machine over
// processes, or else over threads. Throws UsageError with the name of `file` for a recipe's
// optimizer that it does not have, and with several ranks for a file without these tables.
HostTimes host_times_of(const plan::Machine& machine, const recipe::Recipe& recipe,
                        const CountedRanks& counted, const std::string& file);

// "Messages and the optimizer are those of mine.toml, measured over gloo on 2026-01-31."
std::string words_of_host_times(const plan::Machine& machine, const HostTimes& times,
                                const std::string& file);

// The same between the ranks of a run, as they are; all of them call it and get the same. The
// messages of GPUs are not timed: those of threads of this machine stand for them.
HostTimes measure_host_times(const recipe::Recipe& recipe, const RunRanks& ranks);

}  // namespace trestle::train
