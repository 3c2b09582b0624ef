#pragma once

#include <string>

namespace trestle::sharding {

// Compares two ranks' descriptions line by line. A line is "parameter 'in.weight'\tis [4, 3]
// Float". Returns the first difference: "parameter 'in.weight' is [4, 3] Float on rank 0 and [4, 2]
// Float on rank 1".
std::string first_difference(const std::string& first, int first_rank, const std::string& other,
                             int other_rank);

}  // namespace trestle::sharding
