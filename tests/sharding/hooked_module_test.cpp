// Hooked modules by themselves, and units by name in nn::Layers.
#include <gmock/gmock.h>

#include "attack_ranks.h"
#include "trestle/base/error.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/hooks/hooked.h"

namespace trestle {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

// Without a Sharded, Hooked behaves as the module that it wraps: names, containers, clones.
TEST(Hooked, BehavesAsPlainModule) {
  torch::nn::Sequential net;
  net->push_back("conv", HookedHolder<torch::nn::Conv1dImpl>(torch::nn::Conv1dOptions(1, 2, 3)));
  net->push_back("flat", torch::nn::Flatten());
  net->push_back("fc", HookedHolder<torch::nn::LinearImpl>(8, 3));
  net->push_back("drop", HookedHolder<torch::nn::DropoutImpl>(0.5));
  net->eval();
  net->ptr<Hooked<torch::nn::LinearImpl>>(2)->bias.set_requires_grad(false);
  std::vector<std::string> names;
  for (const auto& item : net->named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, (std::vector<std::string>{"conv.weight", "conv.bias", "fc.weight", "fc.bias"}));
  const at::Tensor x = torch::randn({2, 1, 6});
  const at::Tensor expected =
      torch::linear(torch::conv1d(x, net->parameters()[0], net->parameters()[1]).flatten(1),
                    net->parameters()[2], net->parameters()[3]);
  EXPECT_LT((net->forward(x) - expected).abs().max().item<double>(), 1e-6);
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  EXPECT_TRUE(at::equal(copy->forward(x), net->forward(x)));
  EXPECT_NE(copy->ptr<Hooked<torch::nn::LinearImpl>>(2)->weight.data_ptr(),
            net->parameters()[2].data_ptr());
  EXPECT_FALSE(copy->parameters()[3].requires_grad());
  EXPECT_FALSE(copy->ptr(3)->is_training());

  const auto whole = std::make_shared<Hooked<torch::nn::SequentialImpl>>();
  whole->push_back("a", torch::nn::Linear(3, 3));
  whole->push_back("b", torch::nn::Tanh());
  const at::Tensor y = torch::randn({2, 3});
  const auto second = std::dynamic_pointer_cast<Hooked<torch::nn::SequentialImpl>>(whole->clone());
  EXPECT_TRUE(at::equal(second->forward(y), whole->forward(y)));
  EXPECT_EQ(second->named_parameters()[0].key(), "a.weight");

  HookedHolder<torch::nn::LSTMImpl> lstm(torch::nn::LSTMOptions(4, 5));
  const auto [out, state] = lstm->forward(torch::randn({2, 3, 4}), std::nullopt);
  EXPECT_EQ(out.sizes(), (std::vector<std::int64_t>{2, 3, 5}));
}

TEST(HookedUnits, RefuseOutputWithoutTensors) {
  struct NoTensorImpl : torch::nn::Module {
    NoTensorImpl() { fc = register_module("fc", torch::nn::Linear(width, width)); }
    std::pair<int, std::string> forward(const at::Tensor& x) { return {fc(x).dim(), "words"}; }
    torch::nn::Linear fc{nullptr};
  };
  struct Net : Model {
    Net() { part = register_module("part", std::make_shared<Hooked<NoTensorImpl>>()); }
    at::Tensor forward(const at::Tensor& x) override { return x * part->forward(x).first; }
    std::shared_ptr<Hooked<NoTensorImpl>> part;
  };
  spawn(1, [](World& world) {
    ShardedModule<Model> model(make<Net>(), shards(world), {.level = ShardLevel::Parameters});
    try {
      model.forward(own_rows(world).to(at::kFloat));
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the unit 'part' returns no tensor"));
    }
  });
}

TEST(ShardedLayers, SelectUnitsByNameAndType) {
  const auto run = [](const std::vector<std::string>& units) {
    return spawn(2,
                 [&](World& world) {
                   nn::Layers net(nn::Seed{1});
                   for (const char* name :
                        {"in", "block0.a", "block0.b", "block1.a", "block1.b", "out"})
                     net.add(name, [] { return torch::nn::Linear(width, width); });
                   net.add("norm", [] {
                     return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
                   });
                   Sharded sharded(net, shards(world),
                                   {.level = ShardLevel::Parameters, .units = {.names = units}});
                   sharded.backward(sharded.forward(own_rows(world).to(at::kFloat)).sum());
                   return sharded.report().groups;
                 })
        .at(0);
  };
  EXPECT_EQ(run({}), 7);
  EXPECT_EQ(run({"block0", "block1", "out"}), 4);
  EXPECT_EQ(run({"torch::nn::LayerNormImpl"}), 2);
  EXPECT_EQ(run({"Linear"}), 6);
  expect_error(
      1, [&](World&) { run({"LayerNrom"}); }, "did you mean 'LayerNorm'?");
}

}  // namespace
}  // namespace trestle
