#include "benchmarks/measured_steps.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trestle/base/stopwatch.h"

namespace benchmarks {
namespace {

double seconds_of(const std::function<void()>& work) {
  const trestle::Stopwatch watch;
  work();
  return watch.seconds();
}

}  // namespace

void add_flags(Job& job, CLI::App& app) {
  app.add_option("--width", job.width, "Channels of the first level");
  app.add_option("--batch", job.batch, "Images per mini-batch");
  app.add_option("--rows", job.rows, "Height of an image");
  app.add_option("--columns", job.columns, "Width of an image");
  app.add_option("--warm-up", job.warm_up, "Steps before the measurement");
  app.add_option("--steps", job.steps, "Measured steps");
}

StepTimes run_steps(const Job& job, const std::function<void()>& gradients,
                    const std::function<void()>& optimizer,
                    const std::function<void()>& after_warm_up) {
  StepTimes times;
  for (int step = 0; step < job.warm_up + job.steps; ++step) {
    if (step == job.warm_up) after_warm_up();
    const double one = seconds_of(gradients);
    const double two = seconds_of(optimizer);
    if (step == 0) std::cout << "first step" << std::endl;
    if (step < job.warm_up) continue;
    times.gradients.push_back(one);
    times.optimizer.push_back(two);
  }
  return times;
}

void print(nlohmann::ordered_json report, const StepTimes& times) {
  report["gradients_seconds"] = times.gradients;
  report["optimizer_seconds"] = times.optimizer;
  std::cout << report.dump() << std::endl;
}

}  // namespace benchmarks
