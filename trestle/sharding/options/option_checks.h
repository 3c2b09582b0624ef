#pragma once

#include "trestle/comm/group.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/options/rank_groups.h"

namespace trestle::sharding {

// Throws UsageError for options that contradict each other, or that these ranks cannot fulfil.
void check_options(const ShardOptions& options, const RankGroups& ranks);

// Throws UsageError for options that change how nn::Layers run, for `model`, which runs itself.
void need_no_layers(const ShardOptions& options, const char* model);

// Throws UsageError on all ranks where their options differ. The type of the device counts, its
// number does not.
void check_same_options(const comm::Group& group, const ShardOptions& options);

}  // namespace trestle::sharding
