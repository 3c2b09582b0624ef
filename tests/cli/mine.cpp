// A program with its own model and every verb of trestle.
#include <torch/torch.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>

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

bool is(const char* variable, const std::string& value) {
  const char* found = std::getenv(variable);
  return found != nullptr && found == value;
}

// Kills rank 1 in its seventh step unless the ranks were restarted.
trestle::nn::Layers make_falling(const trestle::models::ModelOptions& options, bool falls) {
  trestle::nn::Layers net(trestle::nn::Seed{options.seed});
  net.add("in", [] { return torch::nn::Linear(10, 8); });
  const auto steps = std::make_shared<std::atomic<int>>(0);
  net.add("fall", [falls, steps](const at::Tensor& x) {
    if (falls && at::GradMode::is_enabled() && is("RANK", "1") &&
        is("TORCHELASTIC_RESTART_COUNT", "0") && ++*steps == 7)
      std::raise(SIGKILL);
    return x.relu();
  });
  net.add("out", [] { return torch::nn::Linear(8, 5); });
  return net;
}

}  // namespace

int main(int argc, char** argv) {
  return trestle::run(
      argc, argv,
      {.models = {{"mine", make_mine},
                  {"falls", [](const auto& options) { return make_falling(options, true); }},
                  {"stands", [](const auto& options) { return make_falling(options, false); }}}});
}
