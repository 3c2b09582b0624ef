// A program with a model of its own and every verb of trestle.
#include <torch/torch.h>

#include "trestle/models/model.h"
#include "trestle/run.h"

namespace {

trestle::nn::Layers make_mine(const trestle::models::ModelOptions& options) {
  torch::manual_seed(options.seed);
  trestle::nn::Layers net;
  net.add("in", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)))
      .keep_output("skip");
  net.add("deep", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)));
  net.add("add", [](at::Tensor x, at::Tensor skip) { return (x + skip).relu(); }).take("skip");
  net.add("out", torch::nn::Conv2d(4, 2, 1));
  return net;
}

}  // namespace

int main(int argc, char** argv) {
  return trestle::run(argc, argv, {.models = {{"mine", make_mine}}});
}
