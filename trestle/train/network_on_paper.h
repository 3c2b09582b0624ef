#pragma once

#include <string>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/simulate/link.h"

// The hosts of a recipe's ranks, on paper. Inside of the trainer. Not installed.
namespace trestle::train {

// Whether the stages of a pipeline are on ranks of their own, or in one process without replicas.
// Otherwise each replica is one rank with one device, which runs all stages.
bool stages_apart(const recipe::Recipe::Mesh& mesh);

// [replica][stage] the number of the host, from 0, whose rank holds the stage. With
// 'ranks_per_host' in [mesh] each host has that many consecutive ranks. Otherwise each rank has a
// host of its own, but the ranks of a row of HSDP's mesh share one.
std::vector<std::vector<int>> hosts_on_paper(const recipe::Recipe::Mesh& mesh,
                                             const std::vector<int>& rank_of_stage);

// "25 Gbit/s and 10 us each way (given) · each 4 ranks on a host of their own".
std::string words_of_network(const recipe::Recipe::Mesh& mesh, const simulate::Link& link);

// Throws UsageError for 'ranks_per_host' that leaves ranks of one 'tensor' group on two hosts.
void check_hosts(const recipe::Recipe::Mesh& mesh);

}  // namespace trestle::train
