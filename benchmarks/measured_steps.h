#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace CLI {
class App;
}

// What the benchmark programs share: the job's size, the clock, and the line that run.py reads.
namespace benchmarks {

// A U-Net on random images, as run.py asks for it.
struct Job {
  int width = 64;  // channels of the first level; 64 is the net of 31,037,698 parameters
  int batch = 8;
  int rows = 96;
  int columns = 144;
  int warm_up = 1;  // steps that are run first and not counted
  int steps = 3;
};
void add_flags(Job& job, CLI::App& app);

// Seconds of each counted step, in two parts.
struct StepTimes {
  std::vector<double> gradients;  // zero_grad, forward, loss, backward
  std::vector<double> optimizer;
};

// Runs the warm-up and the counted steps. Says "first step" on standard output when the first one
// is over: run.py reads the clock there.
StepTimes run_steps(
    const Job& job, const std::function<void()>& gradients, const std::function<void()>& optimizer,
    const std::function<void()>& after_warm_up = [] {});

// The last line a program prints.
void print(nlohmann::ordered_json report, const StepTimes& times);

}  // namespace benchmarks
