#pragma once

#include <string>
#include <string_view>

namespace trestle::plan {

// How a figure was found. Simulated: computed by a simulator, or fitted to its output.
enum class Origin { Measured, Simulated, Assumed };

std::string_view to_string(Origin origin);

struct Figure {
  double value = 0;
  Origin origin = Origin::Assumed;
  std::string from = {};  // its source, in words
  // The middle half of the runs of a measurement lies within this share of the value; 0 = unknown.
  double spread = 0;
};

// Between two devices of one node, or of two.
enum class Reach { Inside, Between };

}  // namespace trestle::plan
