#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/tensor_parallel/vocabulary_cross_entropy.h"

// tools/golden/make_tensor_parallel_goldens.py says what the file holds, and what Python runs.
namespace trestle::models {
namespace {

using tensor_parallel::TensorRanks;
using tensor_parallel::VocabularyShard;

TransformerConfig decoder() {
  return {.style = TransformerConfig::Style::Gpt2,
          .vocabulary = 96,
          .context = 16,
          .width = 32,
          .layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_size = 8,
          .mlp = 128,
          .tied_head = false};
}

using Tensors = std::map<std::string, at::Tensor>;

const Tensors& python() {
  static const Tensors tensors = [] {
    const auto file = checkpoint::read_weights(std::string(TRESTLE_SOURCE_DIR) +
                                               "/tests/golden/tensor_parallel/decoder.safetensors");
    return Tensors(file.tensors.begin(), file.tensors.end());
  }();
  return tensors;
}

NamedTensors sorted_parameters(const nn::Layers& net) {
  NamedTensors parameters = net.named_parameters();
  std::sort(parameters.begin(), parameters.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return parameters;
}

// The weights of the formula are those of the whole model, so a rank takes its slices of them.
void set_weights(const nn::Layers& net, const nn::ParameterSlices& slices) {
  const nn::Layers whole = transformer(decoder(), {.type = at::kDouble});
  const NamedTensors from = sorted_parameters(whole), to = sorted_parameters(net);
  golden::set_formula_weights(from);
  ASSERT_EQ(from.size(), to.size());
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) {
    ASSERT_EQ(from[i].first, to[i].first);
    const auto found = slices.find(to[i].first);
    to[i].second.copy_(found == slices.end() ? from[i].second
                                             : testing::slice_of(from[i].second, found->second));
  }
}

void expect_gradients(const nn::Layers& net, const nn::ParameterSlices& slices) {
  double largest = 0;
  for (const auto& [name, tensor] : python())
    if (name.starts_with("gradient."))
      largest = std::max(largest, tensor.abs().max().item<double>());
  for (const auto& [name, parameter] : net.named_parameters()) {
    const auto found = slices.find(name);
    const at::Tensor whole = python().at("gradient." + name).to(at::kDouble);
    const at::Tensor own = found == slices.end() ? whole : testing::slice_of(whole, found->second);
    // The file has fp32's digits.
    EXPECT_TRUE(at::allclose(parameter.grad(), own, 1e-7, 1e-9 * largest)) << name;
  }
}

void compare_with_python(int ranks, bool sequence) {
  SCOPED_TRACE(text(ranks, " ranks, sequence ", sequence));
  spawn(ranks, [&](World& world) {
    TransformerOptions options{.type = at::kDouble};
    options.tensor = {.ranks = TensorRanks(world.group()), .sequence = sequence};
    options.scores = SplitScores::Own;
    nn::Layers net = transformer(decoder(), options);
    const nn::ParameterSlices slices = nn::slices_of(net.graph());
    set_weights(net, slices);
    std::vector<at::Tensor> parameters;
    for (const auto& [name, parameter] : net.named_parameters()) parameters.push_back(parameter);
    torch::optim::AdamW optimizer(
        parameters,
        torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-5).weight_decay(0.1));
    const nn::Loss loss = tensor_parallel::vocabulary_cross_entropy(
        VocabularyShard{options.tensor.ranks, decoder().vocabulary, table_rows(decoder())});
    const at::Tensor expected = python().at(text("losses.", ranks));
    for (std::int64_t step = 0; step < expected.numel(); ++step) {
      const at::Tensor ids = golden::formula_classes({4, 17}, decoder().vocabulary,
                                                     static_cast<std::uint64_t>(1000 + step));
      optimizer.zero_grad();
      const at::Tensor value = loss.value(net.forward(ids.narrow(1, 0, 16)), ids.narrow(1, 1, 16));
      value.backward();
      EXPECT_NEAR(value.item<double>(), expected[step].item<double>(), 1e-9) << "step " << step;
      if (step == 0) expect_gradients(net, slices);
      optimizer.step();
    }
  });
}

TEST(PythonGolden, TenStepsEqualThoseOfParallelizeModule) {
  for (const int ranks : {1, 2, 4})
    for (const bool sequence : {false, true}) compare_with_python(ranks, sequence);
}

}  // namespace
}  // namespace trestle::models
