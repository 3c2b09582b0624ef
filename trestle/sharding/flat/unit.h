#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trestle::sharding {

// Level Parameters: the parameters that are gathered and released together.
struct Unit {
  std::string name;
  std::vector<std::size_t> groups;  // flat groups; units that share a parameter share its group
  // Gathered from the forward until the backward ends, because other units run inside of it.
  bool stays = false;
};

}  // namespace trestle::sharding
