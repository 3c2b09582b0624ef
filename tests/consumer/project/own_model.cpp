#include <trestle/trestle.h>

// A program with its own model and every verb of trestle: own_model train own_model.toml
trestle::nn::Layers make_mine(const trestle::models::ModelOptions& options) {
  torch::manual_seed(static_cast<std::int64_t>(options.seed));
  trestle::nn::Layers net;
  net.add("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
  net.add("flat", torch::nn::Flatten());
  net.add("out", torch::nn::Linear(4 * 28 * 28, 10));
  return net;
}

int main(int argc, char** argv) {
  return trestle::run(argc, argv, {.models = {{"mine", make_mine}}});
}
