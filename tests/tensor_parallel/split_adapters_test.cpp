// Adapters, frozen types and grown vocabularies of a transformer that tensor ranks split, against
// the unsplit model.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/models/tiny_transformers.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/adapters.h"
#include "trestle/models/transformer/head.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/models/transformer/vocabulary.h"

namespace trestle::models {
namespace {

using tensor_parallel::TensorRanks;
using ::testing::HasSubstr;

at::Tensor adapter_ids(std::int64_t rows, std::int64_t count, std::int64_t vocabulary) {
  return (torch::arange(rows * count) * 37 % vocabulary).view({rows, count});
}

struct AdapterCase {
  TransformerConfig config;
  TransformerOptions options;
  int ranks = 2;
  bool sequence = false;
  at::Tensor ids = adapter_ids(3, 12, 40);
  double tolerance = 1e-5;
  bool head = true;  // otherwise the scores are the input of the head
};

// Without the head, whose table is bf16 beside int8 blocks: what it rounds hides what they compute.
nn::Graph graph_of(const AdapterCase& of, const nn::Layers& net) {
  nn::Graph graph = net.graph();
  if (of.head) return graph;
  graph.layers.pop_back();
  graph.ties.clear();
  return graph;
}

// The gradients of the scores, or of a rank's tokens of the head's input.
void backward_of(const AdapterCase& of, const at::Tensor& scores, const nn::IndexRange& tokens) {
  if (!scores.requires_grad()) return;
  if (of.head)
    return at::cross_entropy_loss(scores.flatten(0, 1), of.ids.roll(-1, 1).flatten()).backward();
  const at::Tensor with = torch::arange(of.ids.size(1) * scores.size(-1))
                              .view({1, of.ids.size(1), scores.size(-1)})
                              .sin();
  (scores * with.narrow(1, tokens.begin, tokens.size)).sum().backward();
}

LowRankOptions adapters_for(std::vector<std::string> targets) {
  return {.rank = 3, .alpha = 6, .targets = std::move(targets)};
}

// The second matrices begin at 0, where the first ones have no gradient: `whole` gives them others.
at::Tensor larger_b(const std::string& name, const at::Tensor& whole) {
  torch::manual_seed(fnv1a(name));
  return torch::randn(whole.sizes()) * 0.3;
}

// The unsplit model.
struct UnsplitModel {
  explicit UnsplitModel(const AdapterCase& of) {
    nn::Layers net = transformer(of.config, of.options);
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : net.named_parameters()) {
      initial.emplace(name, tensor.detach().clone());
      if (name.find(".lora") != std::string::npos && name.ends_with(".b"))
        tensor.copy_(larger_b(name, tensor));
      weights.emplace(name, tensor.detach().clone());
    }
    {
      const at::AutoGradMode grad(true);
      scores = nn::run(graph_of(of, net), {of.ids}, {.seed = 5}).at(0);
      backward_of(of, scores, {0, of.ids.size(1)});
    }
    for (const auto& [name, tensor] : net.named_parameters())
      gradients.emplace(name, tensor.grad());
  }
  std::map<std::string, at::Tensor> initial, weights, gradients;
  at::Tensor scores;
};

void expect_close(const at::Tensor& a, const at::Tensor& b, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double error = (a - b).norm().item<double>();
  EXPECT_LE(error, tolerance * b.norm().item<double>() + 1e-9)
      << what << "; of a shifted copy " << (a - b.roll(1, 0)).norm().item<double>();
}

void expect_unsplit(const AdapterCase& of) {
  const UnsplitModel plain(of);
  spawn(of.ranks, [&](World& world) {
    TransformerOptions split = of.options;
    split.tensor = {.ranks = TensorRanks(world.group()), .sequence = of.sequence};
    nn::Layers net = transformer(of.config, split);
    const nn::ParameterSlices slices = nn::slices_of(net.graph());
    const auto own = [&](const std::string& name, const at::Tensor& whole) {
      const auto found = slices.find(name);
      return found == slices.end() ? whole : testing::slice_of(whole, found->second);
    };
    const NamedTensors parameters = net.named_parameters();
    ASSERT_EQ(parameters.size(), plain.weights.size());
    for (const auto& [name, tensor] : parameters) {
      EXPECT_TRUE(at::equal(tensor, own(name, plain.initial.at(name)))) << name;
      tensor.detach().copy_(own(name, plain.weights.at(name)));
    }
    const nn::IndexRange tokens = of.sequence && !of.head ? split.tensor.ranks.own(of.ids.size(1))
                                                          : nn::IndexRange{0, of.ids.size(1)};
    const at::Tensor scores = nn::run(graph_of(of, net), {of.ids}, {.seed = 5}).at(0);
    expect_close(scores, plain.scores.narrow(1, tokens.begin, tokens.size), of.tolerance, "scores");
    backward_of(of, scores, tokens);
    for (const auto& [name, tensor] : parameters) {
      const at::Tensor expected = plain.gradients.at(name);
      const std::string what = text(name, " on rank ", world.rank(), " of ", world.size());
      ASSERT_EQ(tensor.grad().defined(), expected.defined()) << what;
      if (!expected.defined()) continue;
      EXPECT_GT(expected.norm().item<double>(), 1e-6) << what;
      expect_close(tensor.grad(), own(name, expected), of.tolerance, what);
    }
  });
}

// Larger weights than those of a training's beginning, so that all gradients count.
TransformerConfig wide_awake(TransformerConfig config) {
  config.initial_deviation = 0.2;
  return config;
}

TEST(SplitAdapters, EqualThoseOfTheUnsplitGpt2) {
  const TransformerConfig config = wide_awake(tiny_gpt2());
  for (const int ranks : {2, 4})
    for (const bool sequence : {false, true})
      expect_unsplit({.config = config,
                      .options = {.adapters = adapters_for(adapter_targets(config))},
                      .ranks = ranks,
                      .sequence = sequence});
}

// At 4 ranks there are 2 heads of keys and values.
TEST(SplitAdapters, EqualThoseOfTheUnsplitLlamaWithFewerKeysThanRanks) {
  const TransformerConfig config = wide_awake(tiny_llama());
  for (const int ranks : {2, 4})
    for (const bool sequence : {false, true})
      expect_unsplit({.config = config,
                      .options = {.adapters = adapters_for(adapter_targets(config))},
                      .ranks = ranks,
                      .sequence = sequence});
}

TEST(SplitAdapters, BesideSomePartsAndOddSizesEqualThoseOfTheUnsplitModel) {
  TransformerConfig config = wide_awake(tiny_llama());
  config.kv_heads = 1;
  config.head_size = 6;
  config.mlp = 37;
  config.vocabulary = 43;
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"v_proj"}, {"q_proj", "v_proj", "down_proj"}, {"up_proj"}})
    for (const bool sequence : {false, true})
      expect_unsplit({.config = config,
                      .options = {.adapters = adapters_for(targets)},
                      .ranks = 4,
                      .sequence = sequence,
                      .ids = adapter_ids(2, 7, 43)});
}

// The masks are those of the unsplit model: of its tokens, and of a row layer's own inputs.
TEST(SplitAdapters, DropTheInputsThatTheUnsplitModelDrops) {
  for (TransformerConfig config : {wide_awake(tiny_gpt2()), wide_awake(tiny_llama())})
    for (const bool sequence : {false, true}) {
      config.dropout = {.embedding = 0.1, .residual = 0.1, .attention = 0.1};
      LowRankOptions adapters = adapters_for(adapter_targets(config));
      adapters.dropout = 0.3;
      expect_unsplit({.config = config,
                      .options = {.attention = AttentionCore::Written, .adapters = adapters},
                      .ranks = 4,
                      .sequence = sequence});
    }
}

void expect_unsplit_beside(FrozenType type, bool head, double tolerance) {
  for (const TransformerConfig& config : {wide_awake(tiny_gpt2()), wide_awake(tiny_llama())})
    for (const int ranks : {2, 4})
      for (const bool sequence : {false, true})
        expect_unsplit(
            {.config = config,
             .options = {.adapters = adapters_for(adapter_targets(config)), .frozen_type = type},
             .ranks = ranks,
             .sequence = sequence,
             .tolerance = tolerance,
             .head = head});
}

TEST(SplitAdapters, BesideInt8MatricesEqualThoseOfTheUnsplitModel) {
  expect_unsplit_beside(FrozenType::Int8, /*head=*/false, 1e-5);
}

// Products of bf16 matrices are rounded to 8 bits.
TEST(SplitAdapters, BesideBf16MatricesEqualThoseOfTheUnsplitModel) {
  expect_unsplit_beside(FrozenType::BFloat16, /*head=*/true, 0.05);
}

// A model that writes text.
TEST(SplitAdapters, FrozenMatricesWithoutAdaptersGiveTheScoresOfTheUnsplitModel) {
  for (const FrozenType type : {FrozenType::Int8, FrozenType::BFloat16})
    for (const TransformerConfig& config : {wide_awake(tiny_gpt2()), wide_awake(tiny_llama())})
      expect_unsplit(
          {.config = config, .options = {.frozen_type = type}, .ranks = 4, .tolerance = 0.02});
}

TEST(SplitAdapters, AnInt8HeadGivesTheScoresOfTheUnsplitModel) {
  TransformerConfig config = wide_awake(tiny_llama());
  config.vocabulary = 43;
  config.vocabulary_multiple = 16;
  const TransformerOptions options{.frozen_type = FrozenType::Int8};
  const auto scores_of = [&](nn::Layers net) {
    const at::NoGradGuard no_grad;
    net.eval();
    std::dynamic_pointer_cast<HeadImpl>(net.graph().layers.back().module.make())->round_to_int8();
    return net.forward(adapter_ids(2, 7, 43));
  };
  const at::Tensor expected = scores_of(transformer(config, options));
  spawn(4, [&](World& world) {
    TransformerOptions split = options;
    split.tensor.ranks = TensorRanks(world.group());
    expect_close(scores_of(transformer(config, split)), expected, 1e-4, "scores");
  });
}

// In bf16 by autocast messages and products are those of a bf16 model.
TEST(SplitAdapters, UnderAutocastAreNearThoseOfTheUnsplitModel) {
  const auto with_autocast = [](const auto& call) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    call();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  };
  for (const FrozenType type : {FrozenType::Float32, FrozenType::Int8})
    for (const bool sequence : {false, true}) {
      const TransformerConfig config = wide_awake(tiny_llama());
      const TransformerOptions options{.adapters = adapters_for(adapter_targets(config)),
                                       .frozen_type = type};
      const at::Tensor ids = adapter_ids(3, 12, 40);
      at::Tensor expected;
      with_autocast([&] { expected = transformer(config, options).forward(ids); });
      spawn(2, [&](World& world) {
        TransformerOptions split = options;
        split.tensor = {.ranks = TensorRanks(world.group()), .sequence = sequence};
        at::Tensor scores;
        with_autocast([&] { scores = transformer(config, split).forward(ids); });
        EXPECT_EQ(scores.scalar_type(), expected.scalar_type());
        expect_close(scores.to(at::kFloat), expected.to(at::kFloat), 0.02, "scores");
      });
    }
}

// Each rank merges its slices alone.
TEST(SplitAdapters, AreMergedSliceBySlice) {
  for (const FrozenType type : {FrozenType::Float32, FrozenType::Int8}) {
    const TransformerConfig config = wide_awake(tiny_llama());
    const AdapterCase of{
        .config = config,
        .options = {.adapters = adapters_for(adapter_targets(config)), .frozen_type = type}};
    const UnsplitModel plain(of);
    const nn::Layers whole = transformer(config, of.options);
    for (const auto& [name, tensor] : whole.named_parameters())
      tensor.detach().copy_(plain.weights.at(name));
    EXPECT_EQ(merge_adapters(whole), 2 * 7);
    std::map<std::string, at::Tensor> merged;
    for (const auto& [name, tensor] : whole.named_parameters()) merged[name] = tensor.detach();
    for (const int rank : {0, 1, 2, 3}) {
      TransformerOptions split = of.options;
      split.tensor.ranks = TensorRanks::on_paper(rank, 4);
      const nn::Layers net = transformer(config, split);
      const nn::ParameterSlices slices = nn::slices_of(net.graph());
      const auto own = [&](const std::string& name, const at::Tensor& all) {
        const auto found = slices.find(name);
        return found == slices.end() ? all : testing::slice_of(all, found->second);
      };
      for (const auto& [name, tensor] : net.named_parameters())
        tensor.detach().copy_(own(name, plain.weights.at(name)));
      merge_adapters(net);
      for (const auto& [name, tensor] : net.named_parameters())
        EXPECT_TRUE(at::allclose(tensor.detach(), own(name, merged.at(name)), 1e-5, 1e-6)) << name;
    }
  }
}

// PEFT's files hold whole matrices.
TEST(SplitAdapters, AreReadFromAFileOfWholeMatrices) {
  const auto file =
      std::filesystem::path(TRESTLE_BINARY_DIR) / "scratch/split_adapters_test.safetensors";
  std::filesystem::create_directories(file.parent_path());
  for (const TransformerConfig& config : {tiny_gpt2(), tiny_llama()}) {
    const AdapterCase of{.config = config,
                         .options = {.adapters = adapters_for(adapter_targets(config))}};
    const UnsplitModel plain(of);
    const NamedTensors weights(plain.weights.begin(), plain.weights.end());
    checkpoint::write_weights(file, adapter_views(config, weights));
    for (const int rank : {0, 1, 2, 3}) {
      TransformerOptions split = of.options;
      split.seed = 7;
      split.tensor.ranks = TensorRanks::on_paper(rank, 4);
      const nn::Layers net = transformer(config, split);
      const nn::ParameterSlices slices = nn::slices_of(net.graph());
      NamedTensors into;
      checkpoint::LoadOptions options{.rename = [](const std::string& name) { return name; }};
      for (const PublicBox& box : adapter_boxes(config, net.named_parameters(), slices)) {
        if (!box.offset.empty()) options.boxes[into.size()] = {box.offset, box.whole};
        into.emplace_back(box.name, box.view);
      }
      EXPECT_TRUE(checkpoint::load_weights(into, file, options).whole());
      for (const auto& [name, tensor] : adapters_of(net.named_parameters())) {
        const auto slice = slices.find(name);
        const at::Tensor& whole = plain.weights.at(name);
        EXPECT_TRUE(at::equal(
            tensor, slice == slices.end() ? whole : testing::slice_of(whole, slice->second)))
            << name << " on rank " << rank;
      }
    }
  }
  std::filesystem::remove(file);
}

// Rows change their rank: 40 tokens over 4 ranks are 10 rows each, and 51 are 13 and 12.
TEST(SplitVocabulary, GrowsToTheSlicesOfTheGrownModel) {
  for (TransformerConfig config : {tiny_gpt2(), tiny_llama()})
    for (const std::int64_t multiple : {1, 64}) {
      config.vocabulary_multiple = multiple;
      const nn::Layers whole = transformer(config);
      std::map<std::string, at::Tensor> expected;
      for (const auto& [name, tensor] :
           grow_vocabulary(whole, config, 51).layers.named_parameters())
        expected[name] = tensor.detach();
      spawn(4, [&](World& world) {
        const TransformerOptions options{.tensor = {.ranks = TensorRanks(world.group())}};
        const nn::Layers net = transformer(config, options);
        const GrownTransformer grown = grow_vocabulary(net, config, 51, options);
        const nn::ParameterSlices slices = nn::slices_of(grown.layers.graph());
        EXPECT_EQ(grown.layers.named_parameters().size(), expected.size());
        for (const auto& [name, tensor] : grown.layers.named_parameters()) {
          const auto slice = slices.find(name);
          const at::Tensor& all = expected.at(name);
          EXPECT_TRUE(at::equal(
              tensor, slice == slices.end() ? all : testing::slice_of(all, slice->second)))
              << name << " on rank " << world.rank();
        }
      });
      TransformerOptions other;
      other.tensor.ranks = TensorRanks::on_paper(0, 2);
      EXPECT_THAT(testing::refusal_of([&] { grow_vocabulary(whole, config, 51, other); }),
                  HasSubstr("the layers are split over 1 tensor ranks, and the larger ones would "
                            "be over 2"));
    }
}

}  // namespace
}  // namespace trestle::models
