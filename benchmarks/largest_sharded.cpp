// Finds the largest model that 1, 2, 4 and 8 virtual devices of equal size can train at each level,
// and compares it with the level's formula. The ranks are threads. The model is an MLP that grows
// in depth, with AdamW and one sample per rank.
#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/sharded.h"

namespace {

using namespace trestle;

struct Arguments {
  std::vector<int> devices = {1, 2, 4, 8};
  Bytes budget = Bytes{256} << 20;
  int width = 512;
  std::vector<std::string> levels = {};  // empty: all
};

struct Level {
  const char* name;
  ShardLevel level;
  double whole, divided;  // bytes per parameter: on every rank, and summed over all ranks
};
constexpr Level levels[] = {{"none", ShardLevel::None, 16, 0},
                            {"optimizer-state", ShardLevel::OptimizerState, 8, 8},
                            {"gradients", ShardLevel::Gradients, 4, 12},
                            {"parameters", ShardLevel::Parameters, 0, 16}};

std::int64_t parameters_of(const Arguments& arguments, int layers) {
  return std::int64_t{layers} * arguments.width * (arguments.width + 1);
}

// The number of layers that fit by the level's formula, which includes no buckets and no units.
int by_formula(const Arguments& arguments, const Level& level, int devices) {
  const double room =
      static_cast<double>(arguments.budget) / (level.whole + level.divided / devices);
  return static_cast<int>(room / static_cast<double>(parameters_of(arguments, 1)));
}

void train(const Arguments& arguments, const Level& level, int layers, const World& world) {
  const DeviceMesh mesh(world, {{"shard", world.size()}});
  nn::Layers net(nn::Seed{1});
  for (int i = 0; i < layers; ++i)
    net.add("layer" + std::to_string(i), [width = arguments.width] {
      return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::ReLU());
    });
  const at::Device device(at::kPrivateUse1, static_cast<at::DeviceIndex>(world.rank()));
  Sharded sharded(net, mesh,
                  {.level = level.level, .device = device, .buckets = {.size = Bytes{4} << 20}});
  const auto optimizer = optim::make_optimizer(sharded.parameters(), {.name = "adamw"});
  const at::Tensor x = torch::randn({1, arguments.width}).to(device);
  for (int step = 0; step < 2; ++step) {
    optimizer->zero_grad();
    sharded.backward(sharded.forward(x).square().mean());
    optimizer->step();
  }
}

bool fits(const Arguments& arguments, const Level& level, int layers, int devices) {
  bool trains = true;
  try {
    spawn(devices, [&](World& world) { train(arguments, level, layers, world); });
  } catch (const c10::OutOfMemoryError&) {
    trains = false;
  }
  std::fprintf(stderr, "  %s, %d devices, %d layers: %s\n", level.name, devices, layers,
               trains ? "trains" : "out of memory");
  return trains;
}

int largest(const Arguments& arguments, const Level& level, int devices) {
  int fails = by_formula(arguments, level, devices) + 1, fit = 0;
  while (fits(arguments, level, fails, devices)) fit = fails, fails += 1 + fails / 8;
  while (fails - fit > 1 + fails / 64) {  // to about 1.5 percent
    const int middle = fit == 0 ? fails - 1 - fails / 16 : std::midpoint(fit, fails);
    (fits(arguments, level, middle, devices) ? fit : fails) = middle;
    if (middle == 0) break;
  }
  return fit;
}

void measure(const Arguments& arguments) {
  install_virtual_devices(
      {.count = *std::max_element(arguments.devices.begin(), arguments.devices.end())});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Level& level : levels) {
    const auto& wanted = arguments.levels;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), level.name) == wanted.end())
      continue;
    for (const int devices : arguments.devices) {
      for (int i = 0; i < devices; ++i)
        set_budget(at::Device(at::kPrivateUse1, static_cast<at::DeviceIndex>(i)), arguments.budget);
      const auto measured = parameters_of(arguments, largest(arguments, level, devices));
      const auto formula = parameters_of(arguments, by_formula(arguments, level, devices));
      rows.push_back({{"level", level.name},
                      {"devices", devices},
                      {"parameters", measured},
                      {"formula", formula}});
    }
  }
  std::cout << nlohmann::ordered_json{{"rows", rows}}.dump() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  std::string budget = "256MiB";
  CLI::App app("Finds the largest model that trains on virtual devices at each level.");
  app.add_option("--devices", arguments.devices, "Numbers of devices to try")
      ->delimiter(',')
      ->check(CLI::Range(1, 16));
  app.add_option("--budget", budget, "Memory of each device");
  app.add_option("--width", arguments.width, "Features of a layer");
  app.add_option("--levels", arguments.levels, "Levels to measure (default: all)")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    arguments.budget = parse_bytes(budget);
    measure(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "largest_sharded: " << error.what() << std::endl;
    return 1;
  }
}
