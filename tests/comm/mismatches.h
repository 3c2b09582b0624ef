#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "trestle/comm/world.h"

namespace trestle::testing {

// Something that two ranks of a group do not do alike.
struct Mismatch {
  std::string name;
  std::function<void(comm::Group&)> does;  // on each rank, differently; waits
  std::vector<std::string> says;           // words that the error must hold
};

void PrintTo(const Mismatch& mismatch, std::ostream* out);

std::vector<Mismatch> mismatches();

// Does it, and expects a RankError with these words, also of what is asked for afterwards.
void expect_mismatch(World& world, const Mismatch& mismatch);

}  // namespace trestle::testing
