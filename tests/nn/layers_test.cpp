#include "trestle/nn/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trestle/base/error.h"

namespace trestle::nn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct OptionalMaskImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, std::optional<int64_t> /*not a tensor*/,
                     const std::optional<at::Tensor>& mask) {
    return mask ? x * *mask : x;
  }
};
TORCH_MODULE(OptionalMask);

TEST(Layer, CountsArgumentsAndOutputs) {
  const Layer mask = make_layer("mask", OptionalMask());
  EXPECT_EQ(mask.arguments, 2);
  EXPECT_EQ(mask.required_arguments, 1);
  const at::Tensor x = at::full({2}, 3.0);
  EXPECT_TRUE(mask.forward({x})[0].equal(x));
  EXPECT_TRUE(mask.forward({x, at::Tensor()})[0].equal(x));
  EXPECT_TRUE(mask.forward({x, x})[0].equal(x * x));

  const Layer pair = make_layer("pair", [](at::Tensor x) { return std::pair(x, x); });
  EXPECT_EQ(pair.outputs, 2);
  const Layer leading =
      make_layer("leading", [](std::optional<at::Tensor>, at::Tensor x) { return x; });
  EXPECT_EQ(leading.required_arguments, 2);
}

// An argument whose parameter has a default may be omitted. A non-tensor parameter keeps its
// default.
struct ScaledImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& more = at::full({1}, 5.0),
                     double scale = 2) {
    return (x + more) * scale;
  }
};
TORCH_MODULE(Scaled);

struct LaterImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, std::optional<double> scale = 3.0,
                     const std::optional<at::Tensor>& more = {}) {
    return x * scale.value_or(1) + (more ? *more : at::zeros({1}));
  }
};
TORCH_MODULE(Later);

at::Tensor doubled(at::Tensor x) noexcept { return x * 2; }

TEST(Layer, NonTensorParametersKeepTheirDefaults) {
  const Layer later = make_layer("later", Later());
  EXPECT_EQ(later.arguments, 1);  // later arguments cannot be given
  EXPECT_EQ(later.forward({at::full({1}, 2.0)})[0].item<double>(), 6);
  EXPECT_EQ(make_layer("doubled", doubled).forward({at::full({1}, 2.0)})[0].item<double>(), 4);
}

TEST(Layer, ParametersWithADefaultMayBeLeftOut) {
  const at::Tensor x = at::full({1}, 3.0);
  const Layer scaled = make_layer("scaled", Scaled());
  EXPECT_EQ(scaled.arguments, 2);
  EXPECT_EQ(scaled.required_arguments, 1);
  EXPECT_EQ(scaled.forward({x})[0].item<double>(), 16);
  EXPECT_EQ(scaled.forward({x, at::Tensor()})[0].item<double>(), 16);
  EXPECT_EQ(scaled.forward({x, x})[0].item<double>(), 12);

  torch::manual_seed(1);
  torch::nn::GRU gru(4, 4);
  torch::nn::MultiheadAttention attention(4, 2);
  Layers net;
  net.add("gru", gru).pass_on({0});
  net.add("copies", [](at::Tensor y) { return std::tuple(y, y * 2, y * 3); });
  net.add("attention", attention).pass_on({0});
  const at::Tensor input = at::randn({5, 2, 4});
  const at::Tensor y = std::get<0>(gru->forward(input));
  EXPECT_TRUE(net.forward(input).equal(std::get<0>(attention->forward(y, y * 2, y * 3))));
}

TEST(Layer, AcceptsHoldersPointersAndValues) {
  Layers net;
  net.add("holder", torch::nn::Linear(2, 3));
  net.add("pointer", std::make_shared<torch::nn::LinearImpl>(3, 4));
  net.add("value", torch::nn::ReLUImpl());
  net.add("up", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(4, 2, 2)));
  EXPECT_EQ(net.size(), 4u);
  EXPECT_EQ(net.parameter_count(), 2 * 3 + 3 + 3 * 4 + 4 + 4 * 2 * 4 + 2);
}

TEST(Layer, NestedTuplesAreFlattened) {
  const auto nested = [](at::Tensor x) {
    return std::tuple(x, std::pair(x + 1, std::tuple(x + 2)), std::optional<at::Tensor>(), x + 3);
  };
  const Layer layer = make_layer("nested", nested);
  EXPECT_EQ(layer.outputs, 5);
  const Values outputs = layer.forward({at::zeros({1})});
  ASSERT_EQ(outputs.size(), 5u);
  EXPECT_EQ(outputs[2].item<float>(), 2);
  EXPECT_FALSE(outputs[3].defined());
  EXPECT_EQ(outputs[4].item<float>(), 3);
  EXPECT_EQ(make_layer("none", [](at::Tensor) { return std::tuple<>(); }).outputs, 0);
  EXPECT_TRUE(
      make_layer("empty", [](at::Tensor) { return Values(); }).forward({at::Tensor()}).empty());
}

TEST(Layer, AnLstmsCellStateIsAnOutput) {
  torch::manual_seed(1);
  torch::nn::LSTM lstm(3, 4);
  const at::Tensor x = at::randn({5, 2, 3});
  const auto [y, state] = lstm->forward(x);
  const auto& [hidden, cell] = state;
  Layers net;
  net.add("lstm", lstm).pass_on({0}).keep_output("hidden", 1).keep_output("cell", 2);
  net.also_return("hidden").also_return("cell");
  EXPECT_EQ(net.graph().layers[0].outputs, 3);
  const Values outputs = net.forward(Values{x});
  ASSERT_EQ(outputs.size(), 3u);
  EXPECT_TRUE(outputs[0].equal(y));
  EXPECT_TRUE(outputs[1].equal(hidden));
  EXPECT_TRUE(outputs[2].equal(cell));
}

TEST(Layers, TakesASequential) {
  torch::manual_seed(1);
  torch::nn::Sequential plain(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::ReLU(),
                              torch::nn::Linear(8, 2));
  const Layers net = plain;
  EXPECT_EQ(net.size(), 4u);
  const at::Tensor x = at::randn({5, 4});
  EXPECT_TRUE(net.forward(x).equal(plain->forward(x)));
  std::vector<std::string> ours;
  for (const auto& [name, parameter] : net.named_parameters()) ours.push_back(name);
  EXPECT_EQ(ours, plain->named_parameters().keys());
  std::vector<std::string> buffers;
  for (const auto& [name, buffer] : net.named_buffers()) buffers.push_back(name);
  EXPECT_EQ(buffers, plain->named_buffers().keys());
}

TEST(Layers, ASequentialInsideKeepsItsNames) {
  torch::nn::Sequential named({{"fc", torch::nn::AnyModule(torch::nn::Linear(2, 2))}});
  Layers net;
  net.add("head", named);
  EXPECT_EQ(net.graph().layers[0].name, "head.fc");
  EXPECT_EQ(net.named_parameters()[0].first, "head.fc.weight");
}

TEST(Layers, ASequentialChildThatReturnsATupleIsAnError) {
  torch::nn::Sequential plain{torch::nn::LSTM(2, 2)};
  const Layers net = plain;
  try {
    net.forward(at::ones({1, 1, 2}));
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("layer '0'"));
  }
}

TEST(Layers, NonePassesThroughEdges) {
  Layers net;
  net.add("a", [](at::Tensor x) { return std::pair(x, std::optional<at::Tensor>()); })
      .keep_output("none", 1);
  net.add("b", OptionalMask()).take("none");
  EXPECT_TRUE(net.forward(at::ones({2})).equal(at::ones({2})));
}

TEST(Layers, SeveralInputs) {
  Layers net(2);
  net.add("sum", [](at::Tensor x, at::Tensor y) { return x - y; });
  EXPECT_TRUE(net.forward({at::ones({1}), at::ones({1})})[0].equal(at::zeros({1})));
  EXPECT_THROW(net.forward(at::ones({1})), UsageError);
  EXPECT_THROW(net.forward(Values{at::ones({1})}), UsageError);
  EXPECT_THROW(Layers(0), UsageError);
}

TEST(Layers, ACopySharesModulesButNotWiring) {
  Layers net;
  net.add("a", torch::nn::Linear(2, 2));
  Layers copy = net;
  copy.add("b", torch::nn::Linear(2, 2));
  EXPECT_EQ(net.size(), 1u);
  EXPECT_EQ(copy.size(), 2u);
  EXPECT_TRUE(net.parameters()[0].is_same(copy.parameters()[0]));
}

TEST(Layers, DropoutDependsOnItsKeyOnly) {
  Layers net;
  net.add("drop", torch::nn::Dropout(0.5));
  net.add("function", [](at::Tensor x) { return x + at::rand_like(x); });
  const Graph graph = net.graph();
  const at::Tensor x = at::ones({64});
  const RunKey key{7, 3, 1};
  const at::Tensor first = run(graph, {x}, key)[0];
  at::rand({5});
  EXPECT_TRUE(first.equal(run(graph, {x}, key)[0]));
  EXPECT_FALSE(first.equal(run(graph, {x}, RunKey{7, 3, 2})[0]));
  EXPECT_FALSE(first.equal(run(graph, {x}, RunKey{7, 4, 1})[0]));
  EXPECT_FALSE(first.equal(run(graph, {x}, RunKey{8, 3, 1})[0]));
}

template <class Exception>
std::string message_from_layer(const Exception& exception) {
  Layers net;
  net.add("ok", [](at::Tensor x) { return x; });
  net.add("bad", [exception](at::Tensor x) -> at::Tensor { throw exception; });
  try {
    net.forward(at::ones({2, 3}));
  } catch (const Exception& caught) {
    EXPECT_EQ(typeid(caught), typeid(Exception));
    return caught.what();
  }
  return "another type";
}

struct UsersError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(Layers, ExceptionsKeepTheirTypeAndNameTheLayer) {
  const auto names_layer =
      AllOf(HasSubstr("oh"), HasSubstr("in layer 'bad' (arguments [2, 3] Float)"));
  EXPECT_THAT(message_from_layer(std::runtime_error("oh")), names_layer);
  EXPECT_THAT(message_from_layer(std::out_of_range("oh")), names_layer);
  EXPECT_THAT(message_from_layer(std::invalid_argument("oh")), names_layer);
  EXPECT_THAT(message_from_layer(UsageError("oh")), names_layer);
  EXPECT_EQ(message_from_layer(UsersError("oh")), "oh");

  Layers net;
  net.add("linear", torch::nn::Linear(2, 2));
  try {
    net.forward(at::ones({2, 3}));
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("in layer 'linear' (arguments [2, 3] Float)"));
  }
}

TEST(Layers, ModesGradientsAndZeroGradOfTheModel) {
  Layers net;
  net.add("linear", torch::nn::Linear(2, 2));
  net.add("drop", torch::nn::Dropout(0.5));
  net.eval();
  const at::Tensor x = at::ones({1, 2});
  EXPECT_TRUE(net.forward(x).equal(net.forward(x)));
  net.forward(x).sum().backward();
  EXPECT_TRUE(net.parameters()[0].grad().defined());
  net.zero_grad();
  EXPECT_FALSE(net.parameters()[0].grad().defined());
  net.train();
  EXPECT_TRUE(net.graph().layers[1].module->is_training());
}

TEST(Layers, AValueIsFreedAfterItsLastUse) {
  at::NoGradGuard no_grad;
  std::weak_ptr<int> alive;
  Layers net;
  net.add("make", [&](at::Tensor x) {
    auto owner = std::make_shared<int>(1);
    alive = owner;
    return at::from_blob(
        x.data_ptr(), x.sizes(), [owner](void*) mutable { owner.reset(); }, x.options());
  });
  net.add("copy", [](at::Tensor x) { return x.clone(); });
  net.add("inspect", [&](at::Tensor x) {
    EXPECT_TRUE(alive.expired());
    return x;
  });
  net.forward(at::ones({2}));
}

}  // namespace
}  // namespace trestle::nn
