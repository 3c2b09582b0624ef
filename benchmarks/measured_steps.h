#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace CLI {
class App;
}

// Shared by the benchmark programs: the job's size, the clock, and the line that run.py reads.
namespace benchmarks {

// The size of the U-Net and of its random images, set by run.py.
struct Job {
  int width = 64;  // channels of the first level; 64 is the net of 31,037,698 parameters
  int batch = 8;
  int rows = 96;
  int columns = 144;
  int warm_up = 1;  // unmeasured steps at the start
  int steps = 3;
};
void add_flags(Job& job, CLI::App& app);

// Seconds of each measured step, in two parts.
struct StepTimes {
  std::vector<double> gradients;  // zero_grad, forward, loss, backward
  std::vector<double> optimizer;
};

// Runs the warm-up and the measured steps. Prints "first step" after the first one: run.py reads
// the clock there.
StepTimes run_steps(
    const Job& job, const std::function<void()>& gradients, const std::function<void()>& optimizer,
    const std::function<void()>& after_warm_up = [] {});

// Prints the program's last line.
void print(nlohmann::ordered_json report, const StepTimes& times);

}  // namespace benchmarks
