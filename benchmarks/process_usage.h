#pragma once

#include <nlohmann/json.hpp>
#include <vector>

namespace benchmarks {

// Counts of this process since its start, from getrusage().
struct ProcessUsage {
  double waits = 0;           // context switches of a thread that waited
  double preemptions = 0;     // context switches of a thread that wanted to run
  double page_faults = 0;     // without reading from a disk
  double system_seconds = 0;  // in the kernel
  double user_seconds = 0;

  static ProcessUsage now();

  // As numbers that ranks can add up, and back.
  std::vector<double> values() const {
    return {waits, preemptions, page_faults, system_seconds, user_seconds};
  }
  static ProcessUsage from(const double* values) {
    return {values[0], values[1], values[2], values[3], values[4]};
  }
};

ProcessUsage operator-(const ProcessUsage& a, const ProcessUsage& b);

// An object with these names, divided by `steps`.
nlohmann::json per_step(const ProcessUsage& usage, int steps);

}  // namespace benchmarks
