// Compares with torchgpipe 0.0.7's numbers for the same nets, weights and micro-batches.
#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "trestle/optim/factory.h"
#include "trestle/pipeline/pipeline.h"

namespace trestle {
namespace {

PipelineOptions options_of(const golden::Case& golden) {
  const auto balance = golden.content["balance"].get<std::vector<int>>();
  return {.devices = virtual_devices(static_cast<int>(balance.size())),
          .balance = balance,
          .micro_batches = golden.content["chunks"].get<int>(),
          .recompute = Recompute::ExceptLast};
}

class TorchGpipe : public ::testing::TestWithParam<std::string> {};
class TorchGpipeCurve : public ::testing::TestWithParam<std::string> {};

TEST_P(TorchGpipe, MatchesOneStep) {
  golden::Case golden = golden::load_case(GetParam());
  Pipeline pipeline(golden.net, options_of(golden));
  golden::set_formula_weights(golden.net.named_parameters());
  const auto result = pipeline.step(golden.input, golden.target, golden.loss);
  golden::expect_step(golden, "torchgpipe", at::full({}, result.loss),
                      golden.net.named_parameters());
}

TEST_P(TorchGpipe, MatchesOneStepWithCallersBackward) {
  golden::Case golden = golden::load_case(GetParam());
  Pipeline pipeline(golden.net, options_of(golden));
  golden::set_formula_weights(golden.net.named_parameters());
  const at::Tensor output = pipeline.forward(golden.input);
  const at::Tensor loss = golden.loss.value(output, golden.target.to(output.device()));
  loss.backward();
  golden::expect_step(golden, "torchgpipe", loss, golden.net.named_parameters());
}

TEST_P(TorchGpipeCurve, MatchesTenSteps) {
  const auto curves = golden::load_case(GetParam()).content["curves"];
  ASSERT_EQ(curves.size(), 2);
  for (const auto& [name, curve] : curves.items()) {
    golden::Case golden = golden::load_case_for_curves(GetParam());
    Pipeline pipeline(golden.net, options_of(golden));
    const auto& options = curve["options"];
    const auto optimizer = optim::make_optimizer(
        pipeline.parameters(), {.name = name,
                                .learning_rate = options["lr"],
                                .weight_decay = options.value("weight_decay", 0.0),
                                .momentum = options.value("momentum", 0.0)});
    for (const double expected : curve["losses"]) {
      pipeline.zero_grad();
      const double loss = pipeline.step(golden.input, golden.target, golden.loss).loss;
      optimizer->step();
      EXPECT_NEAR(loss, expected, 1e-8 * expected) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Nets, TorchGpipe,
                         ::testing::Values("unet", "unet_odd", "resnet18_flat", "toy"));

INSTANTIATE_TEST_SUITE_P(Nets, TorchGpipeCurve, ::testing::Values("unet", "resnet18_flat", "toy"));

}  // namespace
}  // namespace trestle
