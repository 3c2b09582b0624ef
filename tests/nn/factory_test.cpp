#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "trestle/base/error.h"
#include "trestle/nn/layers.h"

// Layers given as factories: when the modules are created, how often, and with which weights.
namespace trestle::nn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

auto linear(int in, int out) {
  return [=] { return torch::nn::Linear(in, out); };
}

Layers four_layers(Seed seed) {
  Layers block;
  block.add("fc1", linear(4, 4));
  block.add("fc2", linear(4, 4));
  Layers net(seed);
  net.add("in", linear(4, 4));
  net.add("block", block);
  net.add("out", linear(4, 4));
  return net;
}

at::Tensor weight(const Layers& net, const std::string& name) {
  for (const auto& [found, parameter] : net.named_parameters()) {
    if (found == name) return parameter;
  }
  return {};
}

TEST(Factory, ModulesAreCreatedWhenNeeded) {
  int calls = 0;
  Layers net;
  net.add("fc", [&calls] {
    ++calls;
    return torch::nn::Linear(3, 2);
  });
  const Graph graph = net.graph();
  const Layers copy = net;
  net.train();
  net.zero_grad();
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(graph.layers[0].module);
  EXPECT_FALSE(graph.layers[0].module.made());

  EXPECT_EQ(net.parameter_count(), 8);
  EXPECT_EQ(calls, 1);
  const at::Tensor x = at::ones({1, 3});
  EXPECT_TRUE(run(graph, {x})[0].equal(copy.forward(x)));
  net.to(at::kCPU);
  EXPECT_EQ(calls, 1);
}

TEST(Factory, ForwardAndToCreateModules) {
  Layers called = four_layers(Seed{1});
  EXPECT_EQ(called.forward(at::ones({2, 4})).sizes(), at::IntArrayRef({2, 4}));
  for (const Layer& layer : called.graph().layers) EXPECT_TRUE(layer.module.made()) << layer.name;
  Layers moved = four_layers(Seed{1});
  moved.to(at::kCPU);
  for (const Layer& layer : moved.graph().layers) EXPECT_TRUE(layer.module.made()) << layer.name;
}

struct TwoInputsImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x,
                                             const std::optional<at::Tensor>& y) {
    return {x, y.value_or(x)};
  }
};
TORCH_MODULE(TwoInputs);

TEST(Factory, TheReturnTypeGivesArgumentsAndOutputs) {
  const auto expect_signature = [](const Layer& layer) {
    EXPECT_EQ(layer.arguments, 2);
    EXPECT_EQ(layer.required_arguments, 1);
    EXPECT_EQ(layer.outputs, 2);
    EXPECT_FALSE(layer.module.made());
    EXPECT_EQ(layer.forward({at::ones({1})}).size(), 2u);
    EXPECT_TRUE(layer.module.made());
  };
  expect_signature(make_layer("holder", [] { return TwoInputs(); }));
  expect_signature(make_layer("pointer", [] { return std::make_shared<TwoInputsImpl>(); }));
  expect_signature(make_layer("value", [] { return TwoInputsImpl(); }));
  const Layer function = make_layer("function", [](at::Tensor x) { return x; });
  EXPECT_FALSE(function.module);
}

TEST(Factory, WithoutAModelItIsKeyedByItsOwnName) {
  const at::Tensor a = make_layer("a", linear(2, 2)).parameters()[0];
  EXPECT_FALSE(a.equal(make_layer("b", linear(2, 2)).parameters()[0]));
  Layers net;
  net.add("a", linear(2, 2));
  EXPECT_TRUE(a.equal(net.parameters()[0]));
}

TEST(Factory, ASequentialIsOneLayer) {
  Layers net;
  net.add("two", [] {
    return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::ReLU(),
                                 torch::nn::Linear(4, 2));
  });
  EXPECT_EQ(net.size(), 1u);
  EXPECT_EQ(net.forward(at::ones({5, 3})).sizes(), at::IntArrayRef({5, 2}));
  EXPECT_EQ(net.named_parameters()[2].first, "two.2.weight");
}

TEST(Factory, WeightsDependOnSeedAndFullNameAlone) {
  const Layers net = four_layers(Seed{7});
  const at::Tensor fc2 = weight(net, "block.fc2.weight");
  EXPECT_TRUE(fc2.equal(weight(four_layers(Seed{7}), "block.fc2.weight")));
  EXPECT_FALSE(fc2.equal(weight(four_layers(Seed{8}), "block.fc2.weight")));
  EXPECT_FALSE(fc2.equal(weight(net, "block.fc1.weight")));

  Layers alone(Seed{7});
  alone.add("block.fc2", linear(4, 4));  // no other layers, and the same full name
  EXPECT_TRUE(fc2.equal(weight(alone, "block.fc2.weight")));
}

TEST(Factory, WeightsDoNotDependOnThreadAndOrderOfCreation) {
  const NamedTensors expected = four_layers(Seed{7}).named_parameters();
  const Layers net = four_layers(Seed{7});
  const std::vector<Layer> layers = net.graph().layers;
  std::vector<std::thread> threads;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([layer] {
        torch::rand({3});
        layer->module.make();
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  const NamedTensors actual = net.named_parameters();
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].first, expected[i].first);
    EXPECT_TRUE(actual[i].second.equal(expected[i].second)) << expected[i].first;
  }
}

TEST(Factory, TheDefaultGeneratorIsNeitherReadNorAdvanced) {
  torch::manual_seed(1);
  const at::Tensor drawn = at::rand({4});
  torch::manual_seed(1);
  const at::Tensor first = weight(four_layers(Seed{7}), "in.weight");
  EXPECT_TRUE(at::rand({4}).equal(drawn));
  torch::manual_seed(2);
  EXPECT_TRUE(weight(four_layers(Seed{7}), "in.weight").equal(first));
}

TEST(Factory, ANestedModelKeepsItsOwnSeed) {
  const auto nested = [](const Layers& inner) {
    Layers net(Seed{3});
    net.add("inner", inner);
    return weight(net, "inner.fc.weight");
  };
  Layers plain;
  plain.add("fc", linear(4, 4));
  Layers seeded(Seed{5});
  seeded.add("fc", linear(4, 4));
  Layers of_three(Seed{3});
  of_three.add("inner.fc", linear(4, 4));
  Layers of_five(Seed{5});
  of_five.add("inner.fc", linear(4, 4));
  EXPECT_TRUE(nested(plain).equal(weight(of_three, "inner.fc.weight")));
  EXPECT_TRUE(nested(seeded).equal(weight(of_five, "inner.fc.weight")));
}

TEST(Factory, TheModeAppliesToAModuleCreatedLater) {
  Layers net;
  net.add("drop", [] { return torch::nn::Dropout(0.5); });
  net.eval();
  const at::Tensor x = at::ones({64});
  EXPECT_TRUE(net.forward(x).equal(x));
  EXPECT_FALSE(net.graph().layers[0].module->is_training());
}

TEST(Factory, AModuleCreatedInInferenceModeCanBeTrained) {
  Layers net;
  net.add("fc", linear(3, 2));
  {
    const c10::InferenceMode inference;
    net.forward(at::ones({1, 3}));
  }
  net.forward(at::ones({1, 3})).sum().backward();
  EXPECT_TRUE(net.parameters()[0].grad().defined());
}

TEST(Factory, AnErrorNamesTheLayerAndTheNextCallMayWork) {
  bool broken = true;
  Layers block;
  block.add("fc", [&broken] {
    if (broken) throw std::runtime_error("no room");
    return torch::nn::Linear(2, 2);
  });
  Layers net;
  net.add("block", block);
  try {
    net.named_parameters();
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no room"), HasSubstr("creating layer 'block.fc'")));
  }
  broken = false;
  EXPECT_EQ(net.parameter_count(), 6);

  Layers nothing;
  nothing.add("fc", [] { return std::shared_ptr<torch::nn::LinearImpl>(); });
  EXPECT_THROW(nothing.parameters(), UsageError);

  Layers itself;
  itself.add("fc", [&itself] {
    itself.parameters();
    return torch::nn::Linear(2, 2);
  });
  EXPECT_THROW(itself.parameters(), StateError);
}

TEST(Factory, TheSameFactoryLayerTwiceIsTheSameModuleTwice) {
  Layers block;
  block.add("fc", linear(2, 2));
  Layers net;
  net.add("one", block);
  net.add("two", block);
  EXPECT_THROW(net.graph(), UsageError);
}

}  // namespace
}  // namespace trestle::nn
