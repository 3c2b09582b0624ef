// An optimizer that stepped before its model moved.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trestle/device/device.h"
#include "trestle/optim/factory.h"
#include "trestle/optim/state.h"

namespace trestle::optim {
namespace {

class MoveState : public testing::TestWithParam<const char*> {};

TEST_P(MoveState, ContinuesAsIfTheModelHadNotMoved) {
  const at::Device device = virtual_devices(2)[1].torch;
  const auto train = [&](bool move) {
    torch::manual_seed(1);
    torch::nn::Linear linear(4, 3);
    const auto optimizer = make_optimizer(
        linear->parameters(), {.name = GetParam(), .learning_rate = 0.05, .momentum = 0.9});
    for (int step = 0; step < 4; ++step) {
      if (move && step == 2) {
        linear->zero_grad();
        linear->to(device);
        move_state(*optimizer);
      }
      optimizer->zero_grad();
      const at::Tensor x = torch::ones({2, 4}).to(linear->weight.device());
      linear->forward(x).square().sum().backward();
      optimizer->step();
    }
    return linear->weight.detach().cpu();
  };
  EXPECT_TRUE(torch::allclose(train(false), train(true), 1e-6, 1e-7));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, MoveState, testing::Values("sgd", "adam", "adamw", "rmsprop"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           return info.param;
                         });

}  // namespace
}  // namespace trestle::optim
