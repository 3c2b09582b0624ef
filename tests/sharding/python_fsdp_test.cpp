// Losses, norms and weights of PyTorch's DistributedDataParallel and fully_shard
// (tools/golden/make_fsdp_goldens.py) over steps of AdamW with clipping, at every level.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/sharded.h"

namespace trestle {
namespace {

constexpr int rows = 8;

nn::Layers net_of(bool in_double) {
  nn::Layers net(nn::Seed{1});
  net.add("0", [] { return torch::nn::Linear(10, 12); });
  net.add("1", [] { return torch::nn::Tanh(); });
  net.add("2", [] { return torch::nn::Linear(12, 12); });
  net.add("3", [] { return torch::nn::Tanh(); });
  net.add("4", [] { return torch::nn::Linear(12, 5); });
  golden::set_formula_weights(net.named_parameters());
  if (in_double)
    for (const auto& layer : net.graph().layers) layer.module.make()->to(at::kDouble);
  return net;
}

double far(const at::Tensor& actual, const nlohmann::json& expected) {
  return (actual.to(at::kDouble).flatten() -
          at::tensor(expected.get<std::vector<double>>(), at::kDouble))
      .abs()
      .max()
      .item<double>();
}

void expect_case(World& world, const nlohmann::json& golden, ShardLevel level) {
  const bool in_double = golden["dtype"] == "double";
  const int size = world.size(), rank = world.rank();
  std::vector<mesh::Dimension> dimensions;
  for (const int part : golden["mesh"]) dimensions.push_back({"replicate", part});
  dimensions.back().name = "shard";
  const DeviceMesh mesh(world, dimensions);
  ShardOptions options{.level = level, .buckets = {.size = 1024, .first = 256}};
  if (!in_double) {
    options.precision.parameters = at::kBFloat16;
    options.precision.reduce = options.precision.output = at::kFloat;
  }
  Sharded sharded(net_of(in_double), mesh, options);
  const auto optimizer = optim::make_optimizer(
      sharded.parameters(), {.name = "adamw", .learning_rate = 0.02, .weight_decay = 0.1});
  const auto& losses = golden["losses"].at(static_cast<std::size_t>(rank));
  // float64 uses the same kernels. In bfloat16 the sums of a step may round differently.
  const double tolerance = in_double ? 1e-12 : 2e-3;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const auto part = [&](std::int64_t columns, std::uint64_t key) {
      const at::Tensor all = golden::formula_input({rows, columns}, key + step);
      return all.to(in_double ? at::kDouble : at::kFloat)
          .chunk(size)[static_cast<std::size_t>(rank)];
    };
    optimizer->zero_grad();
    const at::Tensor loss = torch::mse_loss(sharded.forward(part(10, 1000)), part(5, 2000));
    sharded.backward(loss);
    EXPECT_NEAR(loss.item<double>(), losses[step].get<double>(), tolerance) << "step " << step;
    EXPECT_NEAR(sharded.clip_grad_norm(0.3), golden["norms"][step].get<double>(), tolerance)
        << "step " << step;
    optimizer->step();
  }
  for (const auto& [name, tensor] : sharded.state())
    EXPECT_LT(far(tensor, golden["weights"].at(name)), in_double ? 1e-12 : 1e-2) << name;
}

class PythonFsdp : public ::testing::TestWithParam<std::string> {};

TEST_P(PythonFsdp, MatchesAtEveryLevel) {
  const auto all = nlohmann::json::parse(
      read_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/sharding/fsdp.json"));
  const auto& golden = all["cases"].at(GetParam());
  int ranks = 1;
  for (const int size : golden["mesh"]) ranks *= size;
  for (const ShardLevel level : {ShardLevel::None, ShardLevel::OptimizerState,
                                 ShardLevel::Gradients, ShardLevel::Parameters}) {
    // Level None keeps no master weights.
    if (level == ShardLevel::None && golden["dtype"] != "double") continue;
    SCOPED_TRACE(std::string(to_string(level)));
    spawn(ranks, [&](World& world) { expect_case(world, golden, level); });
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PythonFsdp,
                         ::testing::Values("ddp_2", "ddp_4", "fsdp_2", "fsdp_4", "hsdp_2x2",
                                           "fsdp_2_bfloat16", "hsdp_2x2_bfloat16"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trestle
