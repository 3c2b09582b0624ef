#include "trestle/tensor_parallel/split_kernel.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <atomic>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/error_context.h"
#include "trestle/tensor_parallel/linear.h"
#include "trestle/tensor_parallel/node_layout.h"
#include "trestle/tensor_parallel/operators.h"
#include "trestle/tensor_parallel/vocabulary_lookup.h"

namespace trestle::tensor_parallel {

namespace {

using device::WeightCall;

class SplitKernel : public device::WeightKernel {
 public:
  SplitKernel(TensorRanks ranks, Split split, const ModuleFacts& facts,
              std::vector<std::int64_t> own)
      : ranks_(std::move(ranks)), split_(split), facts_(facts), own_(std::move(own)) {}

  at::Tensor run(const WeightCall& call) override {
    try {
      return output_of(call);
    } catch (...) {
      rethrow_with_context(text("in the layer '", ranks_.layer(), "', split by ", to_string(split_),
                                " over ", ranks_.size(), " tensor ranks"));
    }
  }

 private:
  at::Tensor output_of(const WeightCall& call) {
    if (call.weight.sizes() != at::IntArrayRef(own_))
      throw UsageError(text("its weight is [", join(call.weight.sizes(), ", "),
                            "], and this rank's slice [", join(own_, ", "), "]"),
                       {.hint = "torch::load() and set_data() put whole weights in the place of "
                                "slices: load them before split(), or by checkpoint/load.h."});
    if (facts_.kind == ModuleKind::Lookup)
      return split_ == Split::Vocabulary ? own_rows(call)
                                         : gathered(call.plain(call.input, call.weight, {}), -1);
    if (split_ == Split::Rows) check_origin(call.input);
    if (facts_.kind == ModuleKind::Convolution) return convolution(call);
    if (split_ == Split::Rows) return row_product(ranks_, call.input, call.weight, call.bias);
    const Replicated x(call.input);
    if (split_ == Split::Columns) return column_product(ranks_, x.tensor, call.weight, call.bias);
    const at::Tensor y = gathered(column_product(ranks_, x.tensor, call.weight), -1);
    return call.bias.defined() ? y + call.bias.to(y.scalar_type()) : y;
  }

  at::Tensor gathered(const at::Tensor& columns, std::int64_t dimension) const {
    if (split_ != Split::ColumnsGathered) return columns;
    return gather(ranks_, Sharded(columns, dimension, facts_.outputs)).tensor;
  }

  at::Tensor convolution(const WeightCall& call) const {
    // Images may come without a batch dimension.
    const std::int64_t channels = call.input.dim() - (call.weight.dim() - 1);
    check_channels(call, channels);
    if (split_ != Split::Rows) {
      const at::Tensor x = branch(ranks_, Replicated(call.input)).tensor;
      return gathered(call.plain(x, call.weight, call.bias), channels);
    }
    const at::Tensor part = call.plain(call.input, call.weight, {});
    const at::Tensor sum = reduce(ranks_, Partial(part)).tensor;
    if (!call.bias.defined()) return sum;
    std::vector<std::int64_t> shape(static_cast<std::size_t>(call.weight.dim() - 1), 1);
    shape[0] = call.bias.size(0);
    return sum + call.bias.view(shape).to(sum.scalar_type());
  }

  void check_channels(const WeightCall& call, std::int64_t channels) const {
    const std::int64_t takes = call.weight.size(facts_.input_dimension);
    if (channels >= 0 && call.input.size(channels) == takes) return;
    throw UsageError(text("it takes ", takes, split_ == Split::Rows ? " of " : " channels, all",
                          split_ == Split::Rows ? text(facts_.inputs, " channels") : "", "; got [",
                          join(call.input.sizes(), ", "), "]"));
  }

  at::Tensor own_rows(const WeightCall& call) const {
    refuse_ids_outside(call.input, facts_.inputs);
    const Partial own(look_up_own(
        call.input, ranks_.own(facts_.inputs),
        [&](const at::Tensor& numbers) { return call.plain(numbers, call.weight, {}); }));
    return reduce(ranks_, own).tensor;
  }

  // The graph is the same in each step, so one check is enough.
  void check_origin(const at::Tensor& x) {
    if (!x.grad_fn() || !at::GradMode::is_enabled() || origin_is_checked_.exchange(true)) return;
    std::vector<Node*> waiting = {x.grad_fn().get()};
    std::unordered_set<Node*> seen = {waiting.front()};
    while (!waiting.empty()) {
      Node* const node = waiting.back();
      waiting.pop_back();
      const NodeLayout layout = layout_of(*node);
      if (layout == NodeLayout::Replicated) refuse_origin("a whole tensor");
      if (layout != NodeLayout::None) continue;
      if (const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
        const std::string name = device::name_of_whole(leaf->variable);
        if (!name.empty()) refuse_origin(text("the whole parameter '", name, "'"));
      }
      for (const auto& edge : node->next_edges())
        if (edge.is_valid() && seen.insert(edge.function.get()).second)
          waiting.push_back(edge.function.get());
    }
  }

  [[noreturn]] void refuse_origin(const std::string& what) {
    origin_is_checked_ = false;
    throw UsageError(text("its input is a slice, and ", what,
                          " was used to compute it, whose gradient would be that of this rank's "
                          "slice alone"),
                     {.hint = "Split that layer by columns or channels, or use it before the "
                              "column layer or after the row layer."});
  }

  using Node = torch::autograd::Node;
  TensorRanks ranks_;
  const Split split_;
  const ModuleFacts facts_;
  const std::vector<std::int64_t> own_;
  std::atomic<bool> origin_is_checked_ = false;
};

}  // namespace

std::shared_ptr<device::WeightKernel> make_split_kernel(const TensorRanks& ranks, Split split,
                                                        const ModuleFacts& facts,
                                                        std::vector<std::int64_t> own) {
  return std::make_shared<SplitKernel>(ranks, split, facts, std::move(own));
}

}  // namespace trestle::tensor_parallel
