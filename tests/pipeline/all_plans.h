#pragma once

#include <array>

#include "tests/pipeline/support.h"
#include "trestle/base/text.h"
#include "trestle/device/virtual_device.h"

// The layers and data of small nets, and every plan under which they run: cuts x devices x
// recompute modes.
namespace trestle::support {

struct Parts {
  mutable std::array<torch::nn::Linear, 3> linear;  // mutable: forward() is not const

  explicit Parts(at::ScalarType dtype) : linear{make(dtype, 1), make(dtype, 2), make(dtype, 3)} {}
  static torch::nn::Linear make(at::ScalarType dtype, int seed) {
    torch::manual_seed(seed);
    torch::nn::Linear layer(width, width);
    layer->to(dtype);
    return layer;
  }
};

struct Plan {
  std::vector<int> balance;
  std::vector<Device> devices;
  std::vector<Recompute> recompute;
};

inline std::vector<Plan> plans(int layer_count) {
  std::vector<std::vector<int>> balances = {{layer_count}, std::vector<int>(layer_count, 1)};
  for (int first = 1; first < layer_count; ++first)
    balances.push_back({first, layer_count - first});
  std::vector<Plan> result;
  for (const auto& balance : balances) {
    const std::size_t stages = balance.size();
    auto own = virtual_devices(4);
    for (std::size_t s = own.size(); s < stages; ++s) own.push_back(own[s % 4]);
    own.resize(stages);
    const std::vector<std::vector<Device>> devices = {own, std::vector<Device>(stages, own[0]),
                                                      std::vector<Device>(stages, cpu_device())};
    std::vector<Recompute> mixed(stages, Recompute::Never);
    if (stages > 1) mixed[1] = Recompute::Always;
    for (const auto& each : devices) {
      for (const auto& recompute : {std::vector<Recompute>(stages, Recompute::Never),
                                    std::vector<Recompute>(stages, Recompute::ExceptLast),
                                    std::vector<Recompute>(stages, Recompute::Always), mixed}) {
        result.push_back({balance, each, recompute});
      }
    }
  }
  return result;
}

inline std::string name_of(const Plan& plan) {
  std::vector<std::string> modes;
  for (const auto mode : plan.recompute) modes.emplace_back(schedule::to_string(mode));
  return text("balance ", join(plan.balance, "-"), ", first on ",
              device_name(plan.devices[0].torch), ", last on ",
              device_name(plan.devices.back().torch), ", recompute ", join(modes, "-"));
}

inline PipelineOptions options_of(const Plan& plan, int micro_batches) {
  return {.devices = plan.devices,
          .balance = plan.balance,
          .micro_batches = micro_batches,
          .plan = {.recompute_per_stage = plan.recompute}};
}

}  // namespace trestle::support
