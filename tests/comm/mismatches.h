#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "trestle/comm/world.h"

namespace trestle::testing {

// Calls in which two ranks of a group differ.
struct Mismatch {
  std::string name;
  std::function<void(comm::Group&)> does;  // called on each rank; waits for the result
  std::vector<std::string> says;           // parts of the expected message
};

void PrintTo(const Mismatch& mismatch, std::ostream* out);

std::vector<Mismatch> mismatches();

// Runs the mismatch and expects a RankError with these words, also from the next call.
void expect_mismatch(World& world, const Mismatch& mismatch);

}  // namespace trestle::testing
