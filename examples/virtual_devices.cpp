// Two virtual devices of 64 MiB each: tensors on them, their memory meters, and the error when a
// device runs out of memory.
#include <torch/torch.h>

#include <iostream>

#include "trestle/base/units.h"
#include "trestle/device/device.h"
#include "trestle/device/layer_scope.h"

int main() {
  const auto devices =
      trestle::parse_devices("virtual:2x64MiB");  // installs the devices: do this first
  const at::Device first = devices[0].torch, second = devices[1].torch;

  torch::nn::Linear layer(1024, 1024);
  layer->to(second);
  const auto x = torch::randn({256, 1024}, first);
  const auto y = layer(x.to(second));  // layer(x) would be an error: two devices
  y.square().mean().backward();        // runs on the thread of virtual:1

  const auto usage = trestle::memory_usage(second);
  std::cout << trestle::device_name(second) << " uses " << trestle::format_bytes(usage.current)
            << ", peak " << trestle::format_bytes(usage.peak) << " of "
            << trestle::format_bytes(usage.budget) << "\n";

  const std::string name = "decoder.up1";
  const trestle::LayerScope scope(name);
  try {
    const auto too_much = torch::zeros({64, 1024, 1024}, second);
  } catch (const c10::OutOfMemoryError& error) {
    std::cout << error.what_without_backtrace() << "\n";
    return 0;  // the error that was expected
  }
  return 1;
}
