// Measures the peak memory of a step for 1 to 36 checkpointed segments, on a virtual device. The
// lowest peak is near the square root of the number of layers. Draws the curve into
// checkpoint_memory.svg.
#include <trestle/trestle.h>

#include <cmath>
#include <iostream>

namespace {

constexpr int layers = 36;

trestle::nn::Layers make_net() {
  trestle::nn::Layers net(trestle::nn::Seed{1});
  for (int i = 0; i < layers; ++i) {
    net.add("block" + std::to_string(i),
            [] { return torch::nn::Sequential(torch::nn::Linear(16, 16), torch::nn::Tanh()); });
  }
  return net;
}

}  // namespace

int main() {
  const trestle::Device device = trestle::virtual_devices(1)[0];
  trestle::nn::Layers net = make_net();
  net.to(device.torch);
  const at::Tensor x = torch::randn({512, 16}).to(device.torch);

  // [measure]
  const auto peak_of_step = [&](const trestle::nn::Checkpointed& model) {
    net.zero_grad();
    trestle::reset_peak_memory(device.torch);
    model.forward(x).square().mean().backward();
    return trestle::memory_usage(device.torch).peak;
  };
  std::vector<double> segments, measured, formula;
  for (int k = 1; k <= layers; ++k) {
    const auto model = trestle::nn::Checkpointed::in_segments(k, net);
    peak_of_step(model);  // finds the segments that modify their inputs
    segments.push_back(k);
    measured.push_back(static_cast<double>(peak_of_step(model)) / 1048576);
  }
  // [measure]

  // One boundary per segment, and one saved tensor per block of the segment that is recomputed.
  const double unit = static_cast<double>(x.nbytes()) / 1048576;
  for (int k = 1; k <= layers; ++k)
    formula.push_back(unit * (k + std::ceil(static_cast<double>(layers) / k)));

  using trestle::view::Mark;
  trestle::write_file(
      "checkpoint_memory.svg",
      trestle::view::to_svg_curves(
          {{.chart = "MiB", .name = "measured", .x = segments, .y = measured, .mark = Mark::Lowest},
           {.chart = "MiB", .name = "k + n / k", .x = segments, .y = formula}},
          {.title = "Peak memory of a step, 36 layers", .x_label = "segments k"}));

  const auto least = std::min_element(measured.begin(), measured.end()) - measured.begin();
  std::cout << "one segment: " << measured[0] << " MiB; " << least + 1
            << " segments: " << measured[least]
            << " MiB; one segment per layer: " << measured.back()
            << " MiB\nwrote checkpoint_memory.svg\n";
  return least + 1 >= 4 && least + 1 <= 10 && measured[least] < measured[0] / 2 ? 0 : 1;
}
