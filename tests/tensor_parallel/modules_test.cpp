// Modules for a program's own model: ColumnLinear, RowLinear and VocabularyEmbedding.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/sharding/scratch_folder.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/seeded.h"
#include "trestle/nn/token_loss.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/tensor_parallel/column_linear.h"
#include "trestle/tensor_parallel/operators.h"
#include "trestle/tensor_parallel/row_linear.h"
#include "trestle/tensor_parallel/split_plan.h"
#include "trestle/tensor_parallel/vocabulary_embedding.h"

namespace trestle::testing {
namespace {

using tensor_parallel::ColumnLinear, tensor_parallel::RowLinear;
using tensor_parallel::ColumnLinearImpl;
using tensor_parallel::SplitLinearOptions, tensor_parallel::VocabularyEmbeddingOptions;
using tensor_parallel::TensorRanks, tensor_parallel::TokenShards;
using tensor_parallel::VocabularyEmbedding;
using ::testing::AllOf;
using ::testing::HasSubstr;

// 13 words and 11 inner features: 2, 3 and 4 ranks share neither evenly.
constexpr std::int64_t vocabulary = 13, features = 6, hidden = 11, rows = 6, tokens = 7;

struct Settings {
  at::ScalarType type = at::kFloat;
  std::uint64_t seed = 3;
  bool shards = false;  // of the tokens

  std::optional<TokenShards> token_shards() const {
    return shards ? std::optional(TokenShards{.dimension = 1, .tokens = tokens}) : std::nullopt;
  }
  SplitLinearOptions linear(bool bias = true, std::vector<std::int64_t> parts = {}) const {
    return {.bias = bias,
            .seed = seed,
            .type = type,
            .parts = std::move(parts),
            .shards = token_shards()};
  }
};

// A gated MLP: gate and up are one product.
struct GatedImpl : torch::nn::Module {
  GatedImpl(const TensorRanks& ranks, const std::string& name, const Settings& settings)
      : up(register_module("up", ColumnLinear(ranks.of(name + ".up"), features, 2 * hidden,
                                              settings.linear(true, {hidden, hidden})))),
        down(register_module(
            "down", RowLinear(ranks.of(name + ".down"), hidden, features, settings.linear()))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = up(x).chunk(2, -1);
    return x + down(at::silu(parts[0]) * parts[1]);
  }
  ColumnLinear up;
  RowLinear down;
};

// The same of torch's layers.
struct PlainGatedImpl : torch::nn::Module {
  PlainGatedImpl()
      : up(register_module("up", torch::nn::Linear(features, 2 * hidden))),
        down(register_module("down", torch::nn::Linear(hidden, features))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = up(x).chunk(2, -1);
    return x + down(at::silu(parts[0]) * parts[1]);
  }
  torch::nn::Linear up, down;
};

// A language model with a tied head that returns the scores of all words.
nn::Layers split_net(const TensorRanks& ranks, const Settings& settings = {}) {
  nn::Layers net;
  net.add("embed", [=] {
    return VocabularyEmbedding(
        ranks.of("embed"), vocabulary, features,
        VocabularyEmbeddingOptions{
            .seed = settings.seed, .type = settings.type, .shards = settings.token_shards()});
  });
  for (const char* name : {"a", "b"})
    net.add(name, [=] { return std::make_shared<GatedImpl>(ranks, name, settings); });
  net.add("head", [=] {
    return ColumnLinear(ranks.of("head"), features, vocabulary, settings.linear(false));
  });
  net.tie("head.weight", "embed.weight", &ColumnLinearImpl::weight);
  net.add("scores", [=](const at::Tensor& x) {
    return tensor_parallel::gather(ranks, tensor_parallel::Sharded(x, -1, vocabulary)).tensor;
  });
  return net;
}

nn::Layers plain_net(const Settings& settings = {}) {
  nn::Layers net;
  net.add("embed", [] { return torch::nn::Embedding(vocabulary, features); });
  for (const char* name : {"a", "b"})
    net.add(name, [] { return std::make_shared<PlainGatedImpl>(); });
  net.add("head", [] {
    return torch::nn::Linear(torch::nn::LinearOptions(features, vocabulary).bias(false));
  });
  net.tie("head.weight", "embed.weight");
  const NamedTensors drawn = split_net(TensorRanks(), settings).named_parameters();
  const NamedTensors own = net.named_parameters();
  EXPECT_EQ(own.size(), drawn.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].first, drawn[i].first);
    own[i].second.set_data(drawn[i].second.detach().clone());
  }
  return net;
}

at::Tensor batch_of(int step = 0) {
  return (torch::arange(rows * (tokens + 1)) * (5 + step) % vocabulary).view({rows, tokens + 1});
}
at::Tensor input_of(int step = 0) { return batch_of(step).narrow(1, 0, tokens); }
at::Tensor target_of(int step = 0) { return batch_of(step).narrow(1, 1, tokens); }

at::Tensor own_part(const at::Tensor& whole, const nn::ParameterSlices& slices,
                    const std::string& name) {
  const auto slice = slices.find(name);
  return slice == slices.end() ? whole : slice_of(whole, slice->second);
}

std::map<std::string, at::Tensor> by_name(const nn::Layers& net) {
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, tensor] : net.named_parameters()) all[name] = tensor;
  return all;
}

TEST(SplitModules, BeginWithTheBitsOfOneRankOnAnyNumberOfRanks) {
  const auto whole = by_name(split_net(TensorRanks()));
  for (const int size : {1, 2, 3, 4})
    spawn(size, [&](World& world) {
      const nn::Layers net = split_net(TensorRanks(world.group()));
      const nn::ParameterSlices slices = nn::slices_of(net.graph());
      EXPECT_EQ(slices.size(), size == 1 ? 0u : 7u);  // all but the row layers' biases
      for (const auto& [name, tensor] : net.named_parameters())
        EXPECT_TRUE(at::equal(tensor, own_part(whole.at(name), slices, name))) << name;
    });
}

// As torch draws: kaiming_uniform_ with a = sqrt(5) is uniform within 1 / sqrt(inputs).
TEST(SplitModules, DrawAsTorchsLayersDoAndOtherwiseForAnotherNameOrSeed) {
  const TensorRanks alone;
  const ColumnLinear column(alone.of("column"), 100, 300);
  const torch::nn::Linear torchs = seeded(1, [] { return torch::nn::Linear(100, 300); });
  const auto expect_alike = [](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_LE(a.abs().max().item<double>(), 0.1);
    EXPECT_NEAR(a.std().item<double>(), b.std().item<double>(), 0.1 * b.std().item<double>());
    EXPECT_NEAR(a.mean().item<double>(), 0, 0.02);
  };
  expect_alike(column->weight, torchs->weight);
  expect_alike(column->bias, torchs->bias);
  expect_alike(RowLinear(alone.of("row"), 100, 300)->weight, torchs->weight);
  const VocabularyEmbedding table(alone.of("table"), 300, 100);
  EXPECT_NEAR(table->weight.std().item<double>(), 1, 0.02);
  EXPECT_TRUE(at::equal(column->weight, ColumnLinear(alone.of("column"), 100, 300)->weight));
  EXPECT_FALSE(at::equal(column->weight, ColumnLinear(alone.of("other"), 100, 300)->weight));
  EXPECT_FALSE(
      at::equal(column->weight,
                ColumnLinear(alone.of("column"), 100, 300, SplitLinearOptions{.seed = 1})->weight));
}

void expect_plain_gradients(const nn::Layers& net, const nn::Layers& plain, double tolerance) {
  const nn::ParameterSlices slices = nn::slices_of(net.graph());
  const auto expected = by_name(plain);
  for (const auto& [name, tensor] : net.named_parameters()) {
    const at::Tensor whole = own_part(expected.at(name).grad(), slices, name);
    ASSERT_EQ(tensor.grad().sizes(), whole.sizes()) << name;
    EXPECT_TRUE(at::allclose(tensor.grad(), whole, tolerance, tolerance))
        << name << ": " << (tensor.grad() - whole).abs().max();
  }
}

TEST(SplitModules, EqualPlainTorchLayers) {
  for (const bool shards : {false, true}) {
    const Settings settings{.type = at::kDouble, .shards = shards};
    nn::Layers plain = plain_net({.type = at::kDouble});
    const at::Tensor expected = plain.forward(input_of());
    expected.square().sum().backward();
    for (const int size : {1, 2, 3, 4})
      spawn(size, [&](World& world) {
        SCOPED_TRACE(text(size, " ranks, shards of the tokens ", shards));
        nn::Layers net = split_net(TensorRanks(world.group()), settings);
        const at::Tensor scores = net.forward(input_of());
        EXPECT_TRUE(at::allclose(scores, expected, 1e-10, 1e-10));
        scores.square().sum().backward();
        expect_plain_gradients(net, plain, 1e-9);
      });
  }
}

TEST(SplitModules, ShardsOfACallReplaceThoseOfTheOptions) {
  spawn(2, [](World& world) {
    const TensorRanks ranks(world.group());
    GatedImpl net(ranks, "mlp", {.type = at::kDouble});
    const at::Tensor x = torch::arange(2 * 5 * features, at::kDouble).view({2, 5, features}).sin();
    const TokenShards shards{.dimension = 1, .tokens = 5};
    const nn::IndexRange own = ranks.own(5);
    const auto run = [&](const at::Tensor& given, const std::optional<TokenShards>& how) {
      return net.down->forward(net.up->forward(given, how).narrow(-1, 0, net.down->weight.size(1)),
                               how);
    };
    EXPECT_TRUE(at::allclose(run(x.narrow(1, own.begin, own.size), shards),
                             run(x, {}).narrow(1, own.begin, own.size), 1e-12, 1e-12));
  });
}

TEST(SplitModules, AutocastGivesThePlainLayersTypesAndNumbersInBf16) {
  const auto under_autocast = [](const nn::Layers& net) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::Tensor y = net.forward(input_of());
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return y;
  };
  const nn::Layers plain = plain_net();
  const at::Tensor expected = under_autocast(plain);
  expected.to(at::kFloat).square().mean().backward();
  spawn(2, [&](World& world) {
    const nn::Layers net = split_net(TensorRanks(world.group()));
    const at::Tensor scores = under_autocast(net);
    EXPECT_EQ(scores.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::allclose(scores, expected, 0.05, 0.05));
    scores.to(at::kFloat).square().mean().backward();
    for (const auto& [name, tensor] : net.named_parameters())
      EXPECT_EQ(tensor.grad().scalar_type(), at::kFloat) << name;
    expect_plain_gradients(net, plain, 0.05);
  });
}

TEST(SplitModules, FrozenWeightsGetNoGradientAndPassOneOn) {
  const auto freeze = [](const nn::Layers& net) {
    for (const auto& [name, tensor] : net.named_parameters())
      tensor.set_requires_grad(name == "a.up.bias" || name == "b.down.bias");
  };
  const Settings settings{.type = at::kDouble};
  const nn::Layers plain = plain_net(settings);
  freeze(plain);
  plain.forward(input_of()).square().sum().backward();
  spawn(3, [&](World& world) {
    const nn::Layers net = split_net(TensorRanks(world.group()), settings);
    freeze(net);
    net.forward(input_of()).square().sum().backward();
    const nn::ParameterSlices slices = nn::slices_of(net.graph());
    const auto expected = by_name(plain);
    for (const auto& [name, tensor] : net.named_parameters()) {
      ASSERT_EQ(tensor.grad().defined(), expected.at(name).grad().defined()) << name;
      if (!tensor.grad().defined()) continue;
      EXPECT_TRUE(
          at::allclose(tensor.grad(), own_part(expected.at(name).grad(), slices, name), 1e-9, 1e-9))
          << name;
    }
  });
}

constexpr double rate = 0.2, max_norm = 0.5;

void step_by_hand(const NamedTensors& parameters) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters) tensor.sub_(tensor.grad(), rate);
}

struct PlainTraining {
  PlainTraining() : net(plain_net()) {
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      const at::Tensor scores = net.forward(input_of(step));
      const at::Tensor loss =
          at::cross_entropy_loss(scores.flatten(0, 1), target_of(step).flatten());
      loss.backward();
      losses.push_back(loss.item<double>());
      norms.push_back(optim::clip_grad_norm(net.parameters(), max_norm));
      step_by_hand(net.named_parameters());
    }
  }
  nn::Layers net;
  std::vector<double> losses, norms;
};

void expect_plain_weights(const NamedTensors& own, const nn::ParameterSlices& slices,
                          const PlainTraining& plain) {
  const auto whole = by_name(plain.net);
  for (const auto& [name, tensor] : own)
    EXPECT_TRUE(at::allclose(tensor, own_part(whole.at(name), slices, name), 1e-4, 1e-5)) << name;
}

checkpoint::SaveRanks saving(World& world) {
  return {.rank = world.rank(), .size = world.size(), .all_gather = [&](const std::string& mine) {
            return world.group().all_gather_bytes(mine);
          }};
}

struct Mesh {
  int pipeline = 1, replicate = 1, tensor = 1;
};

// Losses, clipped norms and weights; the checkpoint has torch's names and whole tensors, which one
// process and other tensor ranks read.
TEST(SplitModules, TrainUnderParallelizeAsPlainLayersAndAreSavedWhole) {
  const PlainTraining plain;
  const ScratchFolder scratch;
  for (const Mesh& size :
       {Mesh{.tensor = 2}, Mesh{.replicate = 2, .tensor = 3}, Mesh{.pipeline = 2, .tensor = 2}}) {
    SCOPED_TRACE(text(size.pipeline, "x", size.replicate, "x", size.tensor));
    const auto folder = scratch.path(text("saved", size.pipeline, size.replicate));
    spawn(size.pipeline * size.replicate * size.tensor, [&](World& world) {
      const DeviceMesh mesh(
          world,
          {{"pipeline", size.pipeline}, {"replicate", size.replicate}, {"tensor", size.tensor}});
      const TensorRanks ranks(mesh);
      ParallelOptions options{.tensor_ranks = ranks, .options = {.micro_batches = 2}};
      if (size.pipeline == 2) options.options.balance = {2, 3};
      Parallel parallel(split_net(ranks), mesh, options);
      const std::int64_t share = rows / parallel.replicas(), begin = share * parallel.replica();
      for (int step = 0; step < 3; ++step) {
        parallel.zero_grad();
        const auto result =
            parallel.step(input_of(step).narrow(0, begin, share),
                          target_of(step).narrow(0, begin, share), nn::token_cross_entropy());
        EXPECT_NEAR(result.loss, plain.losses[static_cast<std::size_t>(step)], 1e-5);
        EXPECT_NEAR(parallel.clip_grad_norm(max_norm), plain.norms[static_cast<std::size_t>(step)],
                    1e-4);
        step_by_hand(parallel.named_parameters());
      }
      const checkpoint::RankSlices slices = parallel.rank_slices();
      expect_plain_weights(parallel.pipeline().named_parameters(), slices.parameters, plain);
      checkpoint::TrainingCheckpoint saved;
      if (parallel.replica() == 0) saved.weights = parallel.pipeline().named_parameters();
      checkpoint::write_training_checkpoint(folder, saved, saving(world), {}, slices);
    });
    const nn::Layers torchs = plain_net({.seed = 8});  // other values
    checkpoint::SavedTraining(folder).copy_weights(torchs.named_parameters(),
                                                   checkpoint::SurplusTensors::Refused);
    expect_plain_weights(torchs.named_parameters(), {}, plain);
    spawn(4, [&](World& world) {
      const nn::Layers net = split_net(TensorRanks(world.group()), {.seed = 8});
      const nn::ParameterSlices slices = nn::slices_of(net.graph());
      checkpoint::SavedTraining(folder, {}, slices)
          .copy_weights(net.named_parameters(), checkpoint::SurplusTensors::Refused);
      expect_plain_weights(net.named_parameters(), slices, plain);
    });
  }
}

// A rule may split the rest of a model, and a row layer of torch's may follow a ColumnLinear.
TEST(SplitModules, APlanKeepsThemAndSplitsTheRest) {
  const Settings settings{.type = at::kDouble};
  const auto make = [&](const TensorRanks& ranks) {
    nn::Layers net(nn::Seed{4});
    net.add("up",
            [=] { return ColumnLinear(ranks.of("up"), features, hidden, settings.linear()); });
    net.add("relu", [](const at::Tensor& x) { return x.relu(); });
    net.add("down", [] {
      torch::nn::Linear down(hidden, features);
      down->to(at::kDouble);
      return down;
    });
    return net;
  };
  const at::Tensor x = torch::arange(4 * features, at::kDouble).view({4, features}).sin();
  const nn::Layers plain = make(TensorRanks());
  const at::Tensor expected = plain.forward(x);
  expected.square().sum().backward();
  spawn(2, [&](World& world) {
    using tensor_parallel::Split, tensor_parallel::split;
    const TensorRanks ranks(world.group());
    const nn::Layers net = make(ranks);
    EXPECT_THAT(refusal_of([&] {
                  split(net, ranks, {{"up", Split::Columns}});
                }),
                HasSubstr("'up': ColumnLinear cannot be split by columns: it is split already"));
    EXPECT_THAT(refusal_of([&] { split(net, ranks, {}); }),
                HasSubstr("'down' needs whole input and gets slices of 'up'"));
    split(net, ranks, {{"down", Split::Rows}});
    EXPECT_EQ(nn::slices_of(net.graph()).size(), 3u);
    const at::Tensor y = net.forward(x);
    EXPECT_TRUE(at::allclose(y, expected, 1e-10, 1e-10));
    y.square().sum().backward();
    expect_plain_gradients(net, plain, 1e-9);
  });
}

TEST(SplitModules, RefuseWrongSizesByName) {
  const TensorRanks four = TensorRanks::on_paper(1, 4);
  EXPECT_THAT(refusal_of([&] { ColumnLinear(four, 6, 8); }), HasSubstr("needs its name"));
  EXPECT_THAT(refusal_of([&] { ColumnLinear(four.of("mlp.up"), 6, 3); }),
              HasSubstr("'mlp.up' has 3 outputs, which 4 tensor ranks cannot share"));
  EXPECT_THAT(refusal_of([&] { RowLinear(four.of("mlp.down"), 3, 6); }),
              HasSubstr("'mlp.down' has 3 inputs, which 4 tensor ranks cannot share"));
  EXPECT_THAT(refusal_of([&] { VocabularyEmbedding(four.of("embed"), 2, 6); }),
              HasSubstr("'embed' has 2 rows, which 4 tensor ranks cannot share"));
  EXPECT_THAT(refusal_of([&] { ColumnLinear(four.of("mlp.up"), 0, 8); }),
              HasSubstr("'mlp.up' has the sizes 8 and 0"));
  EXPECT_THAT(refusal_of([&] {
                ColumnLinear(four.of("mlp.up"), 6, 9, SplitLinearOptions{.parts = {4, 4}});
              }),
              HasSubstr("'mlp.up' has 9 outputs, but the parts {4, 4} have 8"));
  ColumnLinear up(four.of("mlp.up"), 6, 8);
  RowLinear down(four.of("mlp.down"), 8, 6);
  VocabularyEmbedding embed(four.of("embed"), 13, 6);
  EXPECT_THAT(refusal_of([&] {
                up(torch::zeros({2, 5}));
              }),
              HasSubstr("'mlp.up' on tensor rank 1 of 4 takes [..., 6], all inputs; got [2, 5]"));
  EXPECT_THAT(
      refusal_of([&] {
        down(torch::zeros({2, 8}));
      }),
      HasSubstr("'mlp.down' on tensor rank 1 of 4 takes [..., 2], its own inputs; got [2, 8]"));
  EXPECT_THAT(refusal_of([&] { embed(torch::full({2}, 13, at::kLong)); }),
              AllOf(HasSubstr("the row 13 is out of range: it has the rows 0 to 12"),
                    HasSubstr("in the layer 'embed' on tensor rank 1 of 4")));
  EXPECT_THAT(refusal_of([&] { embed(torch::zeros({2})); }),
              AllOf(HasSubstr("ids in int64; got Float [2]"), HasSubstr("'embed'")));
}

// A whole tensor between the two would get a gradient of this rank's slice alone.
TEST(SplitModules, RefuseATensorWhoseGradientWouldBeWrong) {
  const TensorRanks two = TensorRanks::on_paper(0, 2);
  ColumnLinear up(two.of("mlp.up"), 6, 8);
  RowLinear down(two.of("mlp.down"), 8, 6);
  VocabularyEmbedding embed(two.of("embed"), 13, 6);
  const at::Tensor x = embed(torch::zeros({2, 3}, at::kLong));
  EXPECT_THAT(refusal_of([&] { down(x.narrow(-1, 0, 4)); }),
              AllOf(HasSubstr("a tensor cannot be Sharded"), HasSubstr("'mlp.down'")));
  const at::Tensor branched = tensor_parallel::branch(two, tensor_parallel::Replicated(x)).tensor;
  EXPECT_THAT(refusal_of([&] { up(branched); }),
              AllOf(HasSubstr("a tensor cannot be Replicated"), HasSubstr("'mlp.up'")));
}

TEST(SplitModules, PrintTheirShareOfTheSizes) {
  const auto printed = [](const torch::nn::Module& module) {
    std::ostringstream stream;
    stream << module;
    return stream.str();
  };
  const TensorRanks two = TensorRanks::on_paper(1, 2);
  EXPECT_EQ(
      printed(GatedImpl(two, "mlp", {})),
      "trestle::testing::(anonymous namespace)::GatedImpl(\n"
      "  (up): trestle::tensor_parallel::ColumnLinear(inputs=6, outputs=10 of 22, bias=true)\n"
      "  (down): trestle::tensor_parallel::RowLinear(inputs=5 of 11, outputs=6, bias=true)\n"
      ")");
  EXPECT_EQ(printed(*VocabularyEmbedding(two.of("embed"), 13, 6)),
            "trestle::tensor_parallel::VocabularyEmbedding(rows=6 of 13, width=6)");
  EXPECT_EQ(printed(*ColumnLinear(TensorRanks().of("up"), 6, 8)),
            "trestle::tensor_parallel::ColumnLinear(inputs=6, outputs=8, bias=true)");
}

// torchtitan's test_vocab_parallel_embedding_parity: 128 and 131 rows over 4 ranks, whole and as
// shards of the tokens.
TEST(VocabularyEmbedding, HasTheBitsOfTheWholeEmbedding) {
  for (const std::int64_t table : {128, 131}) {
    const at::Tensor weight =
        VocabularyEmbedding(TensorRanks().of("embed"), table, 16)->weight.detach().clone();
    const at::Tensor whole = weight.requires_grad_(true);
    // Each row at least once, and some several times.
    const at::Tensor ids = (torch::arange(4 * 66) * 37 % table).view({4, 66});
    const at::Tensor expected = at::embedding(whole, ids);
    const at::Tensor with = seeded(2, [] { return torch::randn({4, 66, 16}); });
    expected.backward(with);
    for (const bool shards : {false, true})
      spawn(4, [&](World& world) {
        SCOPED_TRACE(text(table, " rows, shards of the tokens ", shards));
        const TensorRanks ranks(world.group());
        VocabularyEmbeddingOptions options;
        if (shards) options.shards = TokenShards{.dimension = 1};
        VocabularyEmbedding embed(ranks.of("embed"), table, 16, options);
        const nn::IndexRange own = ranks.own(table), tokens_of_rank = ranks.own(66);
        const auto shard = [&](const at::Tensor& x) {
          return shards ? x.narrow(1, tokens_of_rank.begin, tokens_of_rank.size) : x;
        };
        EXPECT_TRUE(at::equal(embed->weight, whole.narrow(0, own.begin, own.size)));
        const at::Tensor y = embed(ids);
        EXPECT_TRUE(at::equal(y, shard(expected)));
        y.backward(shard(with));
        EXPECT_TRUE(at::equal(embed->weight.grad(), whole.grad().narrow(0, own.begin, own.size)));
      });
  }
}

}  // namespace
}  // namespace trestle::testing
