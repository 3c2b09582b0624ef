#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/golden.h"
#include "trestle/optim/factory.h"

// Compares the plain models with Python torch. The plain model over micro-batches must also
// reproduce torchgpipe's numbers.
namespace trestle {
namespace {

// One forward over `chunks` micro-batches with concatenated outputs; the oracle "looped".
at::Tensor looped(const golden::Case& golden, std::int64_t chunks) {
  const nn::Graph graph = golden.net.graph();
  nn::RunKey key{.seed = golden.content["key"]["seed"], .step = golden.content["key"]["step"]};
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& piece : golden.input.chunk(chunks)) {
    outputs.push_back(nn::run(graph, {piece}, key)[0]);
    ++key.micro_batch;
  }
  return at::cat(outputs);
}

class Python : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { golden::set_formula_weights(golden_.net.named_parameters()); }
  at::Tensor backward(const at::Tensor& output) {
    at::Tensor loss = golden_.loss.value(output, golden_.target);
    loss.backward();
    return loss;
  }

  golden::Case golden_ = golden::load_case(GetParam());
  std::int64_t chunks_ = golden_.content["chunks"];
};

class PythonCurve : public Python {};  // nets with a recorded loss curve

TEST_P(Python, ParametersHaveTheSameNamesAndShapes) {
  const auto parameters = golden_.net.named_parameters();
  ASSERT_EQ(parameters.size(), golden_.content["parameters"].size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(parameters[i].first, golden_.content["parameters"][i][0].get<std::string>());
    EXPECT_EQ(parameters[i].second.sizes().vec(),
              golden_.content["parameters"][i][1].get<std::vector<std::int64_t>>());
  }
}

TEST_P(Python, WholeBatch) {
  if (!golden_.content["one_step"].contains("whole")) return;  // dropout is keyed by micro-batch
  const at::Tensor loss = backward(golden_.net.forward(golden_.input));
  golden::expect_step(golden_, "whole", loss, golden_.net.named_parameters());
}

TEST_P(Python, Looped) {
  const at::Tensor loss = backward(looped(golden_, chunks_));
  golden::expect_step(golden_, "looped", loss, golden_.net.named_parameters());
  if (!golden_.content["one_step"].contains("torchgpipe")) return;
  golden::expect_step(golden_, "torchgpipe", loss, golden_.net.named_parameters());
}

TEST_P(PythonCurve, TenSteps) {
  ASSERT_EQ(golden_.content["curves"].size(), 2);
  for (const auto& [name, curve] : golden_.content["curves"].items()) {
    golden::Case golden = golden::load_case_for_curves(GetParam());
    const auto& options = curve["options"];
    const auto optimizer = optim::make_optimizer(
        golden.net.parameters(), {.name = name,
                                  .learning_rate = options["lr"],
                                  .weight_decay = options.value("weight_decay", 0.0),
                                  .momentum = options.value("momentum", 0.0)});
    for (const double expected : curve["losses"]) {
      optimizer->zero_grad();
      const at::Tensor loss = golden.loss.value(looped(golden, chunks_), golden.target);
      loss.backward();
      optimizer->step();
      EXPECT_NEAR(loss.item<double>(), expected, 1e-8 * expected) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Nets, Python,
                         testing::Values("unet", "unet_odd", "unet3d", "unet3d_odd",
                                         "resnet18_flat", "toy", "toy_dropout"),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Nets, PythonCurve, testing::Values("unet", "resnet18_flat", "toy"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace trestle
