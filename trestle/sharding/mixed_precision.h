#pragma once

#include "trestle/sharding/options.h"

namespace trestle::sharding {

// Throws UsageError for dtypes that nothing can be computed in.
void check_dtypes(const ShardPrecision& precision);

}  // namespace trestle::sharding
