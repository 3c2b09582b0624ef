#include "trestle/train/calibrate/block_costs.h"

#include <ATen/Functions.h>

#include <cmath>
#include <functional>

namespace trestle::train {

namespace {

constexpr double dropped = 0.1;

class Operators {
 public:
  Operators(at::Device device, at::ScalarType type) : options_(at::device(device).dtype(type)) {}

  at::Tensor weight(at::IntArrayRef sizes) const {
    return at::full(sizes, 0.01, options_).set_requires_grad(true);
  }
  at::Tensor constant(at::IntArrayRef sizes) const { return at::zeros(sizes, options_); }
  at::Tensor ids(std::int64_t count) const { return at::zeros({count}, options_.dtype(at::kLong)); }

 private:
  at::TensorOptions options_;
};

at::Tensor softmax_of_scores(const at::Tensor& scores, const at::Tensor& mask, double scale) {
  return at::dropout(at::softmax(scores * scale + mask, -1), dropped, true);
}

// A block as BlockSizes describes it, with the weights of a GPT's.
class Block {
 public:
  Block(const Operators& operators, const BlockSizes& n)
      : n_(n),
        input_(operators.weight({n.batch, n.tokens, n.hidden})),
        mask_(operators.constant({n.tokens, n.tokens})) {
    const std::int64_t h = n.hidden;
    norms_ = {operators.weight({h}), operators.weight({h}), operators.weight({h}),
              operators.weight({h})};
    weights_ = {operators.weight({3 * h, h}), operators.weight({h, h}),
                operators.weight({4 * h, h}), operators.weight({h, 4 * h})};
    biases_ = {operators.weight({3 * h}), operators.weight({h}), operators.weight({4 * h}),
               operators.weight({h})};
  }

  void run() const {
    const at::Tensor attended = input_ + at::dropout(attention(norm(input_, 0)), dropped, true);
    const at::Tensor wide = at::gelu(linear(norm(attended, 2), 2));
    (attended + at::dropout(linear(wide, 3), dropped, true)).sum().backward();
  }

  // All of it but the products and the scores.
  void run_activations() const {
    const at::Tensor sum = input_ + at::dropout(norm(input_, 0) + biases_[1], dropped, true);
    const at::Tensor normed = norm(sum, 2);
    const at::Tensor wide = at::gelu(at::cat({normed, normed, normed, normed}, -1) + biases_[2]);
    (sum + at::dropout(wide.narrow(-1, 0, n_.hidden) + biases_[3], dropped, true)).sum().backward();
  }

 private:
  at::Tensor norm(const at::Tensor& x, std::size_t which) const {
    return at::layer_norm(x, {n_.hidden}, norms_[which], norms_[which + 1]);
  }
  at::Tensor linear(const at::Tensor& x, std::size_t which) const {
    return at::linear(x, weights_[which], biases_[which]);
  }
  at::Tensor attention(const at::Tensor& x) const {
    const std::int64_t width = n_.hidden / n_.heads;
    const auto parts = linear(x, 0)
                           .view({n_.batch, n_.tokens, 3, n_.heads, width})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const at::Tensor scores = at::matmul(parts[0], parts[1].transpose(-2, -1));
    const at::Tensor shares =
        softmax_of_scores(scores, mask_, 1 / std::sqrt(static_cast<double>(width)));
    return linear(
        at::matmul(shares, parts[2]).transpose(1, 2).reshape({n_.batch, n_.tokens, n_.hidden}), 1);
  }

  BlockSizes n_;
  at::Tensor input_, mask_;
  std::vector<at::Tensor> norms_, weights_, biases_;
};

}  // namespace

BlockCosts time_block_parts(at::Device device, at::ScalarType type, const CalibrationDepth& depth) {
  const Operators operators(device, type);
  const bool large = device.is_cuda();
  const auto timed = [&](const std::function<void()>& run) {
    return time_runs(run, device, depth.budget);
  };
  BlockCosts costs;

  costs.scores_of = large ? BlockSizes{.batch = 4, .tokens = 1024, .hidden = 1024, .heads = 16}
                          : BlockSizes{.batch = 2, .tokens = 256, .hidden = 512, .heads = 8};
  const BlockSizes& s = costs.scores_of;
  const at::Tensor scores = operators.weight({s.batch, s.heads, s.tokens, s.tokens});
  const at::Tensor mask = operators.constant({s.tokens, s.tokens});
  costs.scores = timed([&] { softmax_of_scores(scores, mask, 0.1).sum().backward(); });

  costs.activations_of = large ? BlockSizes{.batch = 8, .tokens = 1024, .hidden = 2048, .heads = 16}
                               : BlockSizes{.batch = 4, .tokens = 256, .hidden = 512, .heads = 8};
  const Block wide(operators, costs.activations_of);
  costs.activations = timed([&] { wide.run_activations(); });

  costs.vocabulary = large ? 32'768 : 8192;
  costs.head_of = large ? BlockSizes{.batch = 8, .tokens = 1024, .hidden = 2048}
                        : BlockSizes{.batch = 1, .tokens = 256, .hidden = 256};
  const std::int64_t tokens = costs.head_of.batch * costs.head_of.tokens;
  const at::Tensor states = operators.weight({tokens, costs.head_of.hidden});
  const at::Tensor table = operators.weight({costs.vocabulary, costs.head_of.hidden});
  const at::Tensor targets = operators.ids(tokens);
  costs.head =
      timed([&] { at::cross_entropy_loss(at::linear(states, table), targets).backward(); });

  const Block small(operators, {.batch = 1, .tokens = 4, .hidden = 16, .heads = 2});
  costs.floor = timed([&] { small.run(); });

  std::vector<BlockSizes> sizes = {{.batch = 2, .tokens = 128, .hidden = 256, .heads = 4},
                                   {.batch = 2, .tokens = 256, .hidden = 384, .heads = 6}};
  if (large)
    sizes = {{.batch = 4, .tokens = 1024, .hidden = 1024, .heads = 16},
             {.batch = 4, .tokens = 2048, .hidden = 2048, .heads = 16},
             {.batch = 2, .tokens = 2048, .hidden = 4096, .heads = 32}};
  else if (!depth.quick)
    sizes.push_back({.batch = 4, .tokens = 256, .hidden = 512, .heads = 8});
  for (const BlockSizes& one : sizes) {
    const Block block(operators, one);
    costs.blocks.emplace_back(one, timed([&] { block.run(); }));
  }
  return costs;
}

}  // namespace trestle::train
