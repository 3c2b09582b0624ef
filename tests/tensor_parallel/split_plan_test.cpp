#include "trestle/tensor_parallel/split_plan.h"

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <map>
#include <string>

#include "tests/tensor_parallel/checks.h"
#include "tests/tensor_parallel/compare_split.h"
#include "tests/tensor_parallel/split_nets.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/seeded.h"
#include "trestle/nn/graph.h"

namespace trestle::tensor_parallel {
namespace {

using ::testing::AllOf, ::testing::HasSubstr, ::testing::Not;
using trestle::testing::FusedBlockImpl, trestle::testing::ConvNetImpl;
using trestle::testing::refusal_of;
using namespace trestle::testing::comparing;

at::Tensor some_ids(std::int64_t rows = 3, std::int64_t tokens = 5) {
  return (torch::arange(rows * tokens) * 7 % trestle::testing::words).view({rows, tokens});
}

const Rules mlp_plan = {{"0", Split::Columns}, {"2", Split::Rows}};

TEST(SplitPlan, SequentialEqualsThePlainModelAlsoWithUnevenFeatures) {
  const InDouble in_double;
  for (const int ranks : {1, 2, 3, 4})
    for (const std::int64_t middle : {12, 11, 5}) {
      compare([=] { return mlp(middle); }, mlp_plan, ranks, random({4, 6}, 1));
      compare([=] { return mlp(middle); }, mlp_plan, ranks, random({2, 3, 6}, 1));
      for (const std::vector<std::int64_t>& sizes :
           {std::vector<std::int64_t>{4, 6}, std::vector<std::int64_t>{2, 3, 6}})
        compare([=] { return mlp(middle); }, {{"*", Split::ColumnsGathered}}, ranks,
                random(sizes, 1));
    }
}

TEST(SplitPlan, TypedMembersAndFusedProjectionsAndATiedHeadEqualThePlainModel) {
  const InDouble in_double;
  for (const int ranks : {1, 2})
    compare([] { return trestle::testing::language_model(); }, trestle::testing::language_plan(),
            ranks, some_ids());
}

// torch's parallelize_module unties them silently.
TEST(SplitPlan, TiedParametersStayTiedWhetherLayersExistOrNot) {
  const InDouble in_double;
  const auto existing = [] {
    return seeded(4, [] {
      nn::Layers net;
      net.add("embed", torch::nn::Embedding(13, 8));
      net.add("head", torch::nn::Linear(torch::nn::LinearOptions(8, 13).bias(false)));
      net.tie("head.weight", "embed.weight");
      return net;
    });
  };
  const Rules rules = {{"embed", Split::Vocabulary}, {"head", Split::ColumnsGathered}};
  compare(existing, rules, 2, some_ids());
  for (const MakeNet& make :
       {MakeNet(existing), MakeNet([] { return trestle::testing::language_model(0); })})
    spawn(2, [&](World& world) {
      nn::Layers net = make();
      split(net, TensorRanks(world.group()), rules);
      const nn::Graph graph = net.graph();
      const at::Tensor head = graph.layers.back().module->parameters()[0];
      EXPECT_TRUE(head.is_same(graph.layers.front().module->parameters()[0]));
      EXPECT_EQ(head.size(0), world.rank() == 0 ? 7 : 6);
      EXPECT_EQ(net.named_parameters().size(), 1u);
      EXPECT_EQ(nn::slices_of(graph).size(), 1u);
    });
}

TEST(SplitPlan, EmbeddingFeaturesAreColumns) {
  const InDouble in_double;
  const auto make = [] {
    return seeded(4, [] {
      nn::Layers net;
      net.add("embed", torch::nn::Embedding(13, 7));
      net.add("tanh", [](at::Tensor x) { return x.tanh(); });
      net.add("out", torch::nn::Linear(7, 3));
      return net;
    });
  };
  compare(make, {{"embed", Split::Columns}, {"out", Split::Rows}}, 2, some_ids());
  compare(make, {{"embed", Split::ColumnsGathered}}, 2, some_ids());
}

nn::Layers conv_net() {
  nn::Layers net(nn::Seed{3});
  net.add("net", [] { return std::make_shared<ConvNetImpl>(); });
  return net;
}

TEST(SplitPlan, ConvolutionsAndTheNormsBetweenThemEqualThePlainModel) {
  const InDouble in_double;
  for (const int ranks : {1, 2, 4})
    for (const Mode mode : {Mode::Train, Mode::Evaluate})
      compare(conv_net, trestle::testing::conv_plan(), ranks, random({3, 3, 6, 5}, 2), mode);
}

TEST(SplitPlan, ConvolutionsOfOneAndThreeDimensionsEqualThePlainModel) {
  const InDouble in_double;
  const auto one = [] {
    return seeded(4, [] {
      using namespace torch::nn;
      return nn::Layers(Sequential(Conv1d(3, 5, 3), BatchNorm1d(5), ConvTranspose1d(5, 4, 3)));
    });
  };
  const auto three = [] {
    return seeded(4, [] {
      using namespace torch::nn;
      return nn::Layers(Sequential(Conv3d(3, 5, 2), BatchNorm3d(5), ConvTranspose3d(5, 4, 2)));
    });
  };
  const Rules rules = {{"0", Split::Columns}, {"1", Split::Channels}, {"2", Split::Rows}};
  compare(one, rules, 2, random({2, 3, 8}, 1));
  compare(three, rules, 2, random({2, 3, 4, 4, 4}, 1));
}

TEST(SplitPlan, FrozenWeightsGetNoGradient) {
  const InDouble in_double;
  const auto make = [] {
    nn::Layers net = mlp(10);
    for (const auto& [name, tensor] : net.named_parameters())
      if (name == "0.weight" || name == "2.bias") tensor.set_requires_grad(false);
    return net;
  };
  compare(make, mlp_plan, 2, random({4, 6}, 1));
}

TEST(SplitPlan, OneNetBesideAnotherAndOneSplitTwice) {
  const InDouble in_double;
  nn::Layers plain = mlp(12);
  const Results expected = run(plain, random({4, 6}, 1), Mode::Train);
  spawn(2, [&](World& world) {
    const TensorRanks ranks(world.group());
    nn::Layers a = mlp(12), b = mlp(12), whole = mlp(12);
    split(a, ranks, mlp_plan);
    split(b, ranks, {{"0", Split::ColumnsGathered}});
    const at::Tensor x = random({4, 6}, 1);
    const nn::ParameterSlices of_a = nn::slices_of(a.graph()), of_b = nn::slices_of(b.graph());
    EXPECT_EQ(of_a.size(), 3u);
    EXPECT_EQ(of_b.size(), 1u);
    expect_same(run(a, x, Mode::Train), expected, of_a);
    expect_same(run(b, x, Mode::Train), expected, of_b);
    const Results again = run(whole, x, Mode::Train);
    EXPECT_TRUE(at::equal(again.output, expected.output));
    for (const auto& [name, tensor] : again.gradients)
      EXPECT_TRUE(at::equal(tensor, expected.gradients.at(name))) << name;
    EXPECT_THAT(refusal_of([&] { split(a, ranks, mlp_plan); }),
                HasSubstr("'0.weight' is split already"));
  });
}

TEST(SplitPlan, ParametersStayTheSameTensorsInMemoryOfTheirOwn) {
  spawn(2, [](World& world) {
    nn::Layers net = mlp(12);
    net.forward(random({4, 6}, 1)).sum().backward();
    const at::Tensor weight = net.parameters()[0];
    split(net, TensorRanks(world.group()), mlp_plan);
    EXPECT_TRUE(net.parameters()[0].is_same(weight));
    EXPECT_EQ(weight.sizes(), at::IntArrayRef({6, 6}));
    EXPECT_EQ(weight.storage().nbytes(), 6 * 6 * sizeof(float));
    EXPECT_FALSE(weight.grad().defined());
    // Conversions keep the split.
    for (const auto& layer : net.graph().layers)
      if (layer.module) layer.module->to(at::kDouble);
    net.forward(random({4, 6}, 1).to(at::kDouble)).sum().backward();
    EXPECT_EQ(weight.grad().sizes(), weight.sizes());
  });
}

TEST(SplitPlan, AutocastAndInferenceModeEqualThePlainModelRoughly) {
  const auto under_autocast = [](nn::Layers& net) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::Tensor y = net.forward(random({2, 3, 6, 6}, 1));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return y;
  };
  nn::Layers plain = conv_net();
  const at::Tensor expected = under_autocast(plain);
  spawn(2, [&](World& world) {
    nn::Layers net = conv_net();
    split(net, TensorRanks(world.group()), trestle::testing::conv_plan());
    const at::Tensor y = under_autocast(net);
    EXPECT_EQ(y.scalar_type(), expected.scalar_type());
    EXPECT_TRUE(at::allclose(y, expected, 0.1, 0.1)) << (y - expected).abs().max();
    y.to(at::kFloat).sum().backward();
    for (const auto& [name, tensor] : net.named_parameters())
      EXPECT_EQ(tensor.grad().scalar_type(), at::kFloat) << name;
  });
  const c10::InferenceMode inference;
  nn::Layers words = trestle::testing::language_model();
  const at::Tensor scores = words.forward(some_ids());
  spawn(2, [&](World& world) {
    const c10::InferenceMode inside;
    nn::Layers net = trestle::testing::language_model();
    split(net, TensorRanks(world.group()), trestle::testing::language_plan());
    EXPECT_TRUE(at::allclose(net.forward(some_ids()), scores, 1e-4, 1e-5));
  });
}

nn::Layers words_net() { return trestle::testing::language_model(1); }

TEST(SplitPlan, RefusesAllFaultsAtOnceAndChangesNothing) {
  const std::string message = plan_refusal(words_net, {{"embd", Split::Vocabulary},
                                                       {"blocks.*.norm1", Split::Channels},
                                                       {"blocks.0.qkv", Split::Columns, {8, 8}, 3},
                                                       {"blocks.0.q*", Split::Columns},
                                                       {"head", Split::Vocabulary}});
  EXPECT_THAT(message, HasSubstr("no layer is named 'embd'; did you mean 'embed'?"));
  EXPECT_THAT(message, HasSubstr("'blocks.0.norm1': LayerNorm cannot be split by channels: a "
                                 "LayerNorm needs all features"));
  EXPECT_THAT(message, HasSubstr("'blocks.0.qkv' has two rules"));
  EXPECT_THAT(message, HasSubstr("'head': Linear cannot be split by vocabulary: Linear can be "
                                 "split by columns or columns, gathered or rows"));
  EXPECT_THAT(message, HasSubstr("Nothing was changed."));
}

TEST(SplitPlan, RefusesSizesThatRanksCannotShare) {
  const auto qkv = [](std::vector<std::int64_t> parts, std::int64_t heads, int ranks) {
    return plan_refusal(
        words_net,
        {{"blocks.0.qkv", Split::Columns, std::move(parts), heads}, {"blocks.0.out", Split::Rows}},
        ranks);
  };
  EXPECT_EQ(qkv({8, 8, 8}, 2, 2), "no error");
  EXPECT_THAT(qkv({8, 8}, 0, 2), HasSubstr("it has 24 outputs, but the parts {8, 8} have 16"));
  EXPECT_THAT(qkv({8, 8, 8}, 8, 3),
              HasSubstr("8 heads cannot be shared by 3 tensor ranks, but by 1, 2, 4, 8"));
  EXPECT_THAT(qkv({8, 8, 8}, 3, 3), HasSubstr("8 outputs do not divide into 3 heads"));
  EXPECT_THAT(qkv({8, 8, 8}, 0, 9),
              HasSubstr("8 outputs cannot be shared by 9 tensor ranks: each of them needs one"));
  EXPECT_THAT(
      plan_refusal(conv_net, trestle::testing::conv_plan(), 3),
      HasSubstr("'net.norm3': 4 groups cannot be shared by 3 tensor ranks, but by 1, 2, 4"));
}

// A fused projection without parts would mix queries, keys and values silently.
TEST(SplitPlan, RefusesAFusedProjectionWithoutParts) {
  EXPECT_THAT(
      plan_refusal(words_net, {{"blocks.*.qkv", Split::Columns}, {"blocks.*.out", Split::Rows}}),
      HasSubstr("'blocks.0.qkv' has 24 outputs, but 'blocks.0.out' takes 8"));
}

TEST(SplitPlan, RefusesSlicesThatNoLayerJoinsAndWholeInputOfARowLayer) {
  const auto net = [] { return mlp(12); };
  EXPECT_THAT(plan_refusal(net, {{"0", Split::Columns}}),
              HasSubstr("'2' needs whole input and gets slices of '0'"));
  EXPECT_THAT(plan_refusal(net, {{"2", Split::Columns}}),
              HasSubstr("'2' gives slices that no row layer joins"));
  EXPECT_THAT(plan_refusal(net, {{"0", Split::Rows}}),
              HasSubstr("'0' takes slices, but its input is whole"));
  EXPECT_THAT(plan_refusal(net, {{"0", Split::Columns}, {"2", Split::Columns}}),
              HasSubstr("'2' needs whole input and gets slices of '0'"));
  EXPECT_THAT(plan_refusal(words_net, {{"blocks.0.down", Split::Rows}}),
              HasSubstr("'blocks.0.down' takes slices, but its input is whole"));
  EXPECT_EQ(plan_refusal(net, {{"*", Split::ColumnsGathered}}), "no error");
  const auto with_norm = [](auto norm) {
    return [=] {
      using namespace torch::nn;
      return nn::Layers(Sequential(Linear(6, 12), norm, Linear(12, 6)));
    };
  };
  EXPECT_THAT(plan_refusal(with_norm(torch::nn::BatchNorm1d(12)), mlp_plan),
              HasSubstr("'1' gets slices of '0': split it by channels"));
  EXPECT_THAT(
      plan_refusal(with_norm(torch::nn::LayerNorm(torch::nn::LayerNormOptions({12}))), mlp_plan),
      HasSubstr("'1' gets slices of '0', but a LayerNorm needs all features"));
}

// The graph of layers is known, not their order alone: a skip around a column layer is whole.
// Between a column and a row layer, in an order that is known.
template <class Middle>
std::string refusal_between_linears(const Middle& middle) {
  return plan_refusal(
      [&] {
        return nn::Layers(
            torch::nn::Sequential(torch::nn::Linear(6, 12), middle, torch::nn::Linear(12, 6)));
      },
      {{"0", Split::Columns}, {"2", Split::Rows}});
}
template <class Middle>
std::string refusal_between_convolutions(const Middle& middle) {
  return plan_refusal(
      [&] {
        return nn::Layers(
            torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), middle, torch::nn::Conv2d(4, 3, 1)));
      },
      {{"0", Split::Columns}, {"2", Split::Rows}});
}

TEST(SplitPlan, RefusesLayersThatMixFeaturesOfSlices) {
  using namespace torch::nn;
  const auto mixes = HasSubstr(
      "gets slices of '0', and may mix features: split '0' by columns, "
      "gathered");
  EXPECT_THAT(refusal_between_linears(Softmax(-1)), AllOf(HasSubstr("'1', a Softmax, "), mixes));
  EXPECT_THAT(refusal_between_linears(LogSoftmax(-1)), mixes);
  EXPECT_THAT(refusal_between_linears(GLU()), mixes);
  EXPECT_THAT(refusal_between_linears(InstanceNorm1d(12)), mixes);
  EXPECT_THAT(refusal_between_linears(Flatten()), mixes);
  EXPECT_THAT(refusal_between_linears(MaxPool1d(3)), mixes);
  EXPECT_THAT(refusal_between_linears(AvgPool2d(3)), mixes);
  EXPECT_THAT(
      refusal_between_linears(Upsample(UpsampleOptions().scale_factor(std::vector<double>{2}))),
      mixes);
  EXPECT_THAT(refusal_between_convolutions(Softmax2d()), mixes);
  EXPECT_THAT(refusal_between_convolutions(LocalResponseNorm(2)), mixes);
  EXPECT_THAT(refusal_between_convolutions(CrossMapLRN2d(2)), mixes);
  EXPECT_THAT(refusal_between_convolutions(PixelShuffle(2)), mixes);
  // It takes [N, C, H, W] for one volume of N channels.
  EXPECT_THAT(refusal_between_convolutions(MaxPool3d(1)), mixes);
  const auto draws = HasSubstr("would draw the same numbers for each rank's slice of '0'");
  EXPECT_THAT(refusal_between_linears(Dropout(0.5)), draws);
  EXPECT_THAT(refusal_between_linears(RReLU()), draws);
  EXPECT_THAT(refusal_between_convolutions(Dropout2d(0.5)), draws);
}

TEST(SplitPlan, KeepsLayersThatWorkOnFeaturesOrChannelsByThemselves) {
  using namespace torch::nn;
  for (const std::string& refusal :
       {refusal_between_linears(ReLU()), refusal_between_linears(GELU()),
        refusal_between_linears(SiLU()), refusal_between_linears(Identity()),
        refusal_between_linears(Functional(torch::relu)),
        refusal_between_convolutions(MaxPool2d(2)), refusal_between_convolutions(AvgPool2d(2)),
        refusal_between_convolutions(InstanceNorm2d(4)), refusal_between_convolutions(ZeroPad2d(1)),
        refusal_between_convolutions(AdaptiveAvgPool2d(2))})
    EXPECT_EQ(refusal, "no error");
}

TEST(SplitPlan, FollowsSkipsOfTheGraph) {
  const InDouble in_double;
  const auto make = [] {
    return seeded(5, [] {
      nn::Layers net;
      net.add("first", torch::nn::Linear(6, 6)).keep_output("skip");
      net.add("up", torch::nn::Linear(6, 8));
      net.add("down", torch::nn::Linear(8, 6));
      net.add("add", [](at::Tensor x, at::Tensor y) { return x + y; }).take("skip");
      net.add("last", torch::nn::Linear(6, 2));
      return net;
    });
  };
  compare(make, {{"up", Split::Columns}, {"down", Split::Rows}}, 2, random({4, 6}, 1));
  EXPECT_THAT(plan_refusal(make, {{"first", Split::Columns}, {"up", Split::Rows}}),
              HasSubstr("'last' needs whole input and gets slices of 'first'"));
}

TEST(SplitPlan, RefusesTiedParametersThatAreSplitDifferently) {
  EXPECT_THAT(plan_refusal(words_net, {{"embed", Split::Vocabulary}}),
              HasSubstr("'head.weight' is tied to 'embed.weight': split both along the same "
                        "dimension, or neither"));
}

TEST(SplitPlan, RefusesEmbeddingsThatNeedAllRows) {
  const auto net = [](const torch::nn::EmbeddingOptions& options) {
    return [=] {
      nn::Layers one;
      one.add("embed", torch::nn::Embedding(options));
      return one;
    };
  };
  using Options = torch::nn::EmbeddingOptions;
  for (const auto& [options, word] :
       {std::pair(Options(8, 4).max_norm(1.0), "max_norm"),
        std::pair(Options(8, 4).scale_grad_by_freq(true), "scale_grad_by_freq"),
        std::pair(Options(8, 4).sparse(true), "sparse")})
    EXPECT_THAT(plan_refusal(net(options), {{"embed", Split::Vocabulary}}),
                HasSubstr(text("with ", word, " an Embedding cannot be split")));
}

// A program's own module may call its members in any order; the shapes tell at run time.
TEST(SplitPlan, ARowLayerWithWholeInputThrowsWithItsName) {
  struct OddImpl : torch::nn::Module {
    OddImpl()
        : a(register_module("a", torch::nn::Linear(6, 6))),
          b(register_module("b", torch::nn::Linear(6, 6))) {}
    at::Tensor forward(const at::Tensor& x) { return a(b(x)); }
    torch::nn::Linear a, b;
  };
  nn::Layers net;
  net.add("odd", std::make_shared<OddImpl>());
  split(net, TensorRanks::on_paper(0, 2), {{"odd.a", Split::Columns}, {"odd.b", Split::Rows}});
  const std::string message = refusal_of([&] { net.forward(torch::ones({2, 6})); });
  EXPECT_THAT(message, HasSubstr("'odd.b' on tensor rank 0 of 2 takes [..., 3], its own inputs; "
                                 "got [2, 6]"));
  EXPECT_THAT(message, HasSubstr("in the layer 'odd.b', split by rows over 2 tensor ranks"));
}

// A whole parameter that is used on slices would get a gradient of those slices alone.
TEST(SplitPlan, AWholeParameterOnSlicesThrowsWithItsName) {
  struct ScaledImpl : torch::nn::Module {
    ScaledImpl()
        : scale(register_parameter("scale", torch::ones({1}))),
          up(register_module("up", torch::nn::Linear(6, 8))),
          down(register_module("down", torch::nn::Linear(8, 6))) {}
    at::Tensor forward(const at::Tensor& x) { return down(up(x) * scale); }
    at::Tensor scale;
    torch::nn::Linear up, down;
  };
  nn::Layers net;
  net.add("own", std::make_shared<ScaledImpl>());
  split(net, TensorRanks::on_paper(0, 2), {{"own.up", Split::Columns}, {"own.down", Split::Rows}});
  for (int step = 0; step < 2; ++step)
    EXPECT_THAT(refusal_of([&] {
                  net.forward(torch::ones({2, 6}));
                }),
                HasSubstr("the whole parameter 'own.scale' was used to compute it"));
}

TEST(SplitPlan, RefusesIdsOutsideOfTheVocabulary) {
  nn::Layers net = words_net();
  split(net, TensorRanks::on_paper(1, 2),
        {{"embed", Split::Vocabulary}, {"head", Split::ColumnsGathered}});
  EXPECT_THAT(refusal_of([&] {
                net.forward(torch::full({1, 2}, 13, at::kLong));
              }),
              HasSubstr("the row 13 is out of range: it has the rows 0 to 12"));
}

TEST(SplitPlan, RanksThatDisagreeAreToldTheFirstDifference) {
  spawn(2, [](World& world) {
    const TensorRanks ranks(world.group());
    EXPECT_THAT(refusal_of([&] {
                  nn::Layers net;
                  net.add("fc", seeded(static_cast<std::uint64_t>(world.rank()),
                                       [] { return torch::nn::Linear(4, 4); }));
                  split(net, ranks, {{"fc", Split::ColumnsGathered}});
                }),
                HasSubstr("the tensor ranks split different models: fc.weight [4, 4] with the "
                          "values"));
    EXPECT_THAT(refusal_of([&] {
                  nn::Layers net = mlp(12);
                  split(net, ranks, world.rank() == 0 ? mlp_plan : Rules{});
                }),
                HasSubstr("rule '0' columns {} 0 on tensor rank 0, nothing on tensor rank 1"));
  });
}

TEST(SplitPlan, LayersAreSplitWheneverTheyAreMade) {
  nn::Layers net = words_net();
  const nn::Graph graph = net.graph();
  split(net, TensorRanks::on_paper(0, 2), trestle::testing::language_plan());
  for (const nn::Layer& layer : graph.layers) EXPECT_EQ(layer.module.made(), nullptr);
  {
    const auto for_now = graph.layers[1].module.make_temporarily();
    EXPECT_EQ(graph.layers[1].module->named_parameters()["qkv.weight"].size(0), 12);
  }
  EXPECT_EQ(graph.layers[1].module.made(), nullptr);
  EXPECT_EQ(graph.layers[1].parameter_slices().at("gate_up.bias").ranges,
            (std::vector<nn::IndexRange>{{0, 6}, {11, 6}}));
  EXPECT_EQ(graph.layers[0].module.made(), nullptr);
}

TEST(SplitPlan, DescribesEachLayer) {
  nn::Layers net = mlp(12);
  const SplitPlan plan = split(net, TensorRanks::on_paper(1, 2), mlp_plan);
  ASSERT_EQ(plan.layers.size(), 2u);
  EXPECT_EQ(plan.layers[0].own_bytes, (6 * 6 + 6) * 4);
  EXPECT_EQ(plan.layers[1].whole_bytes, (12 * 6 + 6) * 4);
  EXPECT_EQ(plan.description(), R"(tensor rank 1 of 2
layer  kind    split    this rank's slice  bytes  of     sent forward    backward
0      Linear  columns  6 of 12 outputs    168 B  336 B  nothing         24 B per token
2      Linear  rows     6 of 12 inputs     168 B  312 B  24 B per token  nothing
)");
  nn::Layers alone = mlp(12);
  EXPECT_THAT(split(alone, TensorRanks(), mlp_plan).description(), Not(HasSubstr("per token")));
  EXPECT_TRUE(nn::slices_of(alone.graph()).empty());
}

}  // namespace
}  // namespace trestle::tensor_parallel
