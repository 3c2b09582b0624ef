#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/simulate/link.h"
#include "trestle/train/run_ranks.h"

// The hosts of a run's ranks and the link between them. Inside of the trainer. Not installed.
namespace trestle::train {

struct RunNetwork {
  simulate::Link link;
  bool measured = false;  // otherwise the recipe gives it
  int hosts = 1;
  std::vector<int> host_of_rank;  // its number, in the order of the first rank of each host

  // "2 hosts · 94.1 Mbit/s and 120 us each way (measured)".
  std::string words() const;
};

// Identifies this process's host, also among hosts of one name.
std::string this_host();

// Nothing if all ranks are on one host. Without 'link' in [mesh] the first rank of the first host
// exchanges messages with the first rank of each other host, in about a second for two hosts, and
// the slowest link counts. All ranks call it and get the same.
std::optional<RunNetwork> find_network(const recipe::Recipe::Mesh& mesh, const RunRanks& ranks,
                                       const std::string& host = this_host());

}  // namespace trestle::train
