// Measures one step of each optimizer over the U-Net's parameters: trestle's optimizer and the
// class of torch::optim, alternating, over the same tensors. It runs no forward and no backward.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trestle/base/stopwatch.h"
#include "trestle/device/device.h"
#include "trestle/device/stream_event.h"
#include "trestle/models/unet.h"
#include "trestle/optim/factory.h"

namespace {

using trestle::optim::OptimizerOptions;
using Parameters = std::vector<at::Tensor>;
using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

struct Job {
  std::string device = "cpu";
  int width = 64;  // the U-Net of 31,037,698 parameters
  int steps = 20;
  int warm_up = 2;  // the first step creates the state
};

struct Contest {
  const char* name;
  OptimizerOptions ours;
  Optimizer (*theirs)(Parameters, const OptimizerOptions&);
};

Optimizer adamw(Parameters parameters, const OptimizerOptions& o) {
  return std::make_unique<torch::optim::AdamW>(
      std::move(parameters),
      torch::optim::AdamWOptions(o.learning_rate).weight_decay(o.weight_decay));
}
Optimizer adam(Parameters parameters, const OptimizerOptions& o) {
  return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                              torch::optim::AdamOptions(o.learning_rate));
}
Optimizer rmsprop(Parameters parameters, const OptimizerOptions& o) {
  return std::make_unique<torch::optim::RMSprop>(std::move(parameters),
                                                 torch::optim::RMSpropOptions(o.learning_rate)
                                                     .weight_decay(o.weight_decay)
                                                     .momentum(o.momentum));
}
Optimizer sgd(Parameters parameters, const OptimizerOptions& o) {
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters),
      torch::optim::SGDOptions(o.learning_rate).weight_decay(o.weight_decay).momentum(o.momentum));
}

// The rate is so low that the weights hardly change over any number of steps.
const std::vector<Contest> contests = {
    {"AdamW", {.name = "adamw", .learning_rate = 1e-6, .weight_decay = 1e-2}, adamw},
    {"Adam", {.name = "adam", .learning_rate = 1e-6}, adam},
    {"RMSprop, momentum, weight decay",
     {.name = "rmsprop", .learning_rate = 1e-6, .weight_decay = 1e-8, .momentum = 0.9},
     rmsprop},
    {"SGD, momentum", {.name = "sgd", .learning_rate = 1e-6, .momentum = 0.9}, sgd},
    {"SGD, momentum, weight decay",
     {.name = "sgd", .learning_rate = 1e-6, .weight_decay = 1e-4, .momentum = 0.9},
     sgd}};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

nlohmann::ordered_json run(const Contest& contest, const Parameters& parameters, const Job& job) {
  const Optimizer ours = trestle::optim::make_optimizer(parameters, contest.ours);
  const Optimizer theirs = contest.theirs(parameters, contest.ours);
  const auto seconds_of_step = [&](torch::optim::Optimizer& optimizer) {
    const trestle::Stopwatch watch;
    optimizer.step();
    trestle::device::synchronize(parameters.front().device());
    return watch.seconds();
  };
  std::vector<double> one, two;
  for (int step = 0; step < job.warm_up + job.steps; ++step) {
    const double mine = seconds_of_step(*ours);
    const double other = seconds_of_step(*theirs);
    if (step < job.warm_up) continue;
    one.push_back(mine);
    two.push_back(other);
  }
  return {{"name", contest.name}, {"ours", median(one)}, {"theirs", median(two)}};
}

void measure(const Job& job) {
  const trestle::Device device = trestle::parse_devices(job.device).front();
  trestle::nn::Layers net = trestle::models::unet({.width = job.width});
  net.to(device.torch);
  const Parameters parameters = net.parameters();
  for (const auto& parameter : parameters)
    parameter.mutable_grad() = 1e-3 * torch::randn_like(parameter.detach());
  nlohmann::ordered_json report{{"device", trestle::to_string(device)},
                                {"parameters", net.parameter_count()}};
  for (const Contest& contest : contests) {
    const auto row = run(contest, parameters, job);
    std::printf("%-34s trestle %8.4f s   torch::optim %8.4f s   ratio %.3f\n", contest.name,
                row["ours"].get<double>(), row["theirs"].get<double>(),
                row["ours"].get<double>() / row["theirs"].get<double>());
    std::fflush(stdout);
    report["rows"].push_back(row);
  }
  std::cout << report.dump() << std::endl;
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("One step of each optimizer over the U-Net's parameters, against torch::optim.");
  Job job;
  app.add_option("--device", job.device, "cpu, or virtual:1 for one virtual device");
  app.add_option("--width", job.width, "Channels of the first level");
  app.add_option("--warm-up", job.warm_up, "Steps before the measurement");
  app.add_option("--steps", job.steps, "Measured steps of each optimizer")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, count, arguments);
  try {
    measure(job);
  } catch (const std::exception& error) {
    std::cerr << "optimizer_step: " << error.what() << "\n";
    return 1;
  }
}
