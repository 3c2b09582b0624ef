// A program whose ranks fail as the environment requests, for tools/rank_trials.py:
//
//   TRIAL_RANK=1 TRIAL_POINT=backward TRIAL_AT=7 TRIAL_HOW=kill
//
// Points: start (while its layers are created), forward, backward (the TRIAL_AT-th one), save
// (while a checkpoint is written). Ways: kill, stop, delay, throw. TRIAL_ONCE=1 fails only before a
// restart.
#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>

#include "trestle/models/model.h"
#include "trestle/run.h"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void go_wrong() {
  const std::string how = variable("TRIAL_HOW");
  if (how == "kill") std::raise(SIGKILL);
  if (how == "stop") std::raise(SIGSTOP);
  if (how == "delay") std::this_thread::sleep_for(std::chrono::seconds(60));
  if (how == "throw") throw std::runtime_error("the trial wants it so");
}

bool here(const std::string& point) {
  const bool again = variable("TRIAL_ONCE") == "1" && variable("TORCHELASTIC_RESTART_COUNT") != "0";
  return !again && variable("TRIAL_POINT") == point && variable("TRIAL_RANK") == variable("RANK");
}

// Counts how often this process reached the point.
void reached(const std::string& point, int& count) {
  if (here(point) && ++count == std::atoi(variable("TRIAL_AT").c_str())) go_wrong();
}

struct FaultyBackward : torch::autograd::Function<FaultyBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    static int count = 0;
    reached("backward", count);
    return gradients;
  }
};

at::Tensor faulty(at::Tensor x) {
  static int count = 0;
  if (x.requires_grad()) reached("forward", count);
  return FaultyBackward::apply(x);
}

trestle::nn::Layers make_model(const trestle::models::ModelOptions& options) {
  trestle::nn::Layers net(trestle::nn::Seed{options.seed});
  for (int stage = 0; stage < 3; ++stage) {
    const std::string number = std::to_string(stage);
    net.add("linear" + number, [] {
      int count = 0;
      reached("start", count);
      return torch::nn::Linear(64, 64);
    });
    net.add("fault" + number, faulty);
  }
  return net;
}

// Fails while any run's checkpoint is being written.
void watch_saves(const std::filesystem::path& runs) {
  for (;;) {
    std::error_code error;
    for (const auto& run : std::filesystem::directory_iterator(runs, error))
      if (std::filesystem::exists(run.path() / "last.tmp", error)) go_wrong();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (here("save") && variable("TRIAL_HOW") != "throw")
    std::thread(watch_saves, variable("TRIAL_RUNS")).detach();
  return trestle::run(argc, argv, {.models = {{"trial", make_model}}});
}
