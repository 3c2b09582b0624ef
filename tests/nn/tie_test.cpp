#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/nn/layers.h"

// Parameters that two layers share, tied by name.
namespace trestle::nn {
namespace {

using support::message_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr int words = 11, width = 6;

auto embedding() {
  return [] { return torch::nn::Embedding(words, width); };
}
auto output_layer() {
  return [] { return torch::nn::Linear(torch::nn::LinearOptions(width, words).bias(false)); };
}

Layers language_model() {
  Layers net(Seed{3});
  net.add("embed", embedding());
  net.add("hidden", [] { return torch::nn::Linear(width, width); });
  net.add("head", output_layer());
  net.tie("head.weight", "embed.weight");
  return net;
}

at::Tensor weight_of(const Layer& layer) { return layer.module->named_parameters()["weight"]; }

TEST(Tie, TiedTensorIsListedOnceAndGetsBothGradients) {
  const Layers net = language_model();
  const Graph graph = net.graph();
  for (const Layer& layer : graph.layers) EXPECT_FALSE(layer.module.made());
  const at::Tensor input = at::arange(5);
  net.forward(input).square().sum().backward();

  const at::Tensor weight = weight_of(graph.layers[0]);
  EXPECT_TRUE(weight.is_same(weight_of(graph.layers[2])));
  std::vector<std::string> names;
  for (const auto& [name, parameter] : net.named_parameters()) names.push_back(name);
  EXPECT_THAT(names, testing::ElementsAre("embed.weight", "hidden.weight", "hidden.bias"));
  EXPECT_EQ(net.parameter_count(), words * width + width * width + width);

  // The same in plain torch.
  const at::Tensor w = weight.detach().clone().requires_grad_();
  const auto hidden = net.named_parameters();
  at::linear(
      at::linear(at::embedding(w, input), hidden[1].second.detach(), hidden[2].second.detach()), w)
      .square()
      .sum()
      .backward();
  EXPECT_TRUE(at::allclose(weight.grad(), w.grad(), 1e-6, 1e-6));
}

TEST(Tie, EitherLayerFirst) {
  for (const int first : {0, 2}) {
    const Graph graph = language_model().graph();
    graph.layers[first].module.make();
    EXPECT_TRUE(weight_of(graph.layers[0]).is_same(weight_of(graph.layers[2])));
    EXPECT_FALSE(graph.layers[1].module.made());
    EXPECT_TRUE(weight_of(graph.layers[0]).equal(language_model().parameters()[0]));
  }
}

TEST(Tie, TiesExistingModules) {
  Layers net;
  torch::nn::Embedding embed(words, width);
  torch::nn::Linear head(torch::nn::LinearOptions(width, words).bias(false));
  net.add("embed", embed);
  net.add("head", head);
  net.tie("head.weight", "embed.weight");
  EXPECT_TRUE(head->weight.is_same(embed->weight));
  net.to(at::kCPU);
  EXPECT_NO_THROW(net.graph());
  EXPECT_EQ(net.parameter_count(), words * width);
}

struct HeadImpl : torch::nn::Module {
  HeadImpl() : table(register_parameter("table", at::zeros({words, width}))) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, table); }
  at::Tensor table;
};

struct DecoderImpl : torch::nn::Module {
  DecoderImpl() : head(register_module("head", std::make_shared<HeadImpl>())) {}
  at::Tensor forward(const at::Tensor& x) { return head->forward(x); }
  std::shared_ptr<HeadImpl> head;
};

TEST(Tie, TiesAMemberOfAUsersModule) {
  Layers net;
  net.add("embed", embedding());
  net.add("decoder", [] { return std::make_shared<DecoderImpl>(); });
  net.tie("decoder.head.table", "embed.weight", &HeadImpl::table);
  net.forward(at::arange(3)).sum().backward();
  EXPECT_EQ(net.parameters().size(), 1u);
  EXPECT_NE(net.forward(at::arange(3)).abs().sum().item<double>(),
            0);  // not the module's own zeros

  Layers unnamed;
  unnamed.add("embed", embedding());
  unnamed.add("decoder", [] { return std::make_shared<DecoderImpl>(); });
  unnamed.tie("decoder.head.table", "embed.weight");
  EXPECT_THAT(
      message_of<UsageError>([&] { unnamed.parameters(); }),
      AllOf(HasSubstr("'head.table' is still referenced"), HasSubstr("creating layer 'decoder'")));
}

TEST(Tie, ATensorReferencedElsewhereIsRejected) {
  Layers net;
  net.add("embed", embedding());
  torch::nn::Linear head(torch::nn::LinearOptions(width, words).bias(false));
  const at::Tensor held = head->weight;  // as an optimizer would
  net.add("head", head);
  EXPECT_THAT(message_of<UsageError>([&] { net.tie("head.weight", "embed.weight"); }),
              HasSubstr("'weight' is still referenced elsewhere"));
  EXPECT_TRUE(head->weight.is_same(held));
  EXPECT_TRUE(head->named_parameters()["weight"].is_same(held));
}

TEST(Tie, NestedNamesHaveTheContainersPrefix) {
  Layers net(Seed{1});
  net.add("before", [](at::Tensor x) { return x; });
  net.add("lm", language_model());
  const Graph graph = net.graph();
  ASSERT_EQ(graph.ties.size(), 1u);
  EXPECT_EQ(graph.ties[0].layer, 3);
  EXPECT_EQ(graph.ties[0].owner, 1);
  net.forward(at::arange(3));
  EXPECT_EQ(net.named_parameters()[0].first, "lm.embed.weight");
  EXPECT_EQ(net.named_parameters().size(), 3u);

  Layers outside;
  outside.add("one", language_model());
  outside.add("two", output_layer());
  outside.tie("two.weight", "one.embed.weight");
  EXPECT_TRUE(weight_of(outside.graph().layers[3]).is_same(weight_of(outside.graph().layers[0])));
}

TEST(Tie, MistakesAreReportedByName) {
  const auto tied = [](const std::string& parameter, const std::string& owner) {
    return message_of<UsageError>([&] {
      Layers net = language_model();
      net.add("function", [](at::Tensor x) { return x; });
      net.tie(parameter, owner);
      net.parameters();
    });
  };
  EXPECT_THAT(tied("haed.weight", "embed.weight"),
              HasSubstr("no layer has a parameter 'haed.weight'"));
  EXPECT_THAT(tied("hidden.wieght", "embed.weight"), HasSubstr("did you mean 'weight'?"));
  EXPECT_THAT(tied("hidden.bias", "embed.table"), HasSubstr("there is no parameter 'table'"));
  EXPECT_THAT(
      tied("hidden.weight", "embed.weight"),
      AllOf(HasSubstr("has shape [6, 6]"), HasSubstr("tied to a parameter of shape [11, 6]")));
  EXPECT_THAT(tied("function.weight", "embed.weight"), HasSubstr("a function has no parameters"));
  EXPECT_THAT(tied("hidden.weight", "hidden.bias"), HasSubstr("to a layer that is the same one"));
  EXPECT_THAT(tied("embed.weight", "head.weight"), HasSubstr("while tying 'embed.weight'"));
}

TEST(Tie, UndeclaredSharingIsStillRejected) {
  torch::nn::Embedding embed(words, width);
  Layers net;
  net.add("embed", embed);
  net.add("head", [embed] {
    torch::nn::Linear head(torch::nn::LinearOptions(width, words).bias(false));
    head->weight = head->register_parameter("tied", embed->weight);
    return head;
  });
  EXPECT_NO_THROW(net.graph());  // no module exists yet, so sharing is unknown
  net.parameters();
  EXPECT_THAT(message_of<UsageError>([&] { net.graph(); }), HasSubstr("share a parameter"));
}

}  // namespace
}  // namespace trestle::nn
