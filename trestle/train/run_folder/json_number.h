#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

// Inside of train. Not installed.
namespace trestle::train {

// JSON has no infinity: a number that is not finite is written as null.
inline nlohmann::ordered_json json_number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace trestle::train
