#include "trestle/tensor_parallel/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tensor_parallel/collectives.h"
#include "trestle/tensor_parallel/held_ranks.h"
#include "trestle/tensor_parallel/node_layout.h"
#include "trestle/tensor_parallel/operators.h"

namespace trestle::tensor_parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t whole = -1;  // the dimension of tokens that are not sharded

std::int64_t token_dimension(const std::optional<TokenShards>& shards) {
  return shards ? shards->dimension : whole;
}

void hold_tokens(AutogradContext* context, const TensorRanks& ranks, std::int64_t dimension,
                 std::int64_t tokens, bool has_bias) {
  hold(context, ranks);
  context->saved_data["dimension"] = dimension;
  context->saved_data["tokens"] = tokens;
  context->saved_data["bias"] = has_bias;
}

void refuse_second_derivative() {
  if (at::GradMode::is_enabled())
    throw UsageError("a split linear layer cannot be differentiated twice",
                     {.hint = "Write the product with the operators of "
                              "trestle/tensor_parallel/operators.h, which can."});
}

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Autograd counts the tensors that exist, so a bias is nullopt or defined.
std::optional<at::Tensor> if_there(const at::Tensor& bias) {
  return bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
}

// A frozen weight has no gradient, for which x would be kept.
void save(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
  context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
}

struct ColumnProduct : torch::autograd::Function<ColumnProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const TensorRanks& ranks,
                            std::int64_t dimension, std::int64_t tokens) {
    hold_tokens(context, ranks, dimension, tokens, bias.has_value());
    save(context, x, weight);
    const at::Tensor all = dimension == whole ? x : gather(ranks, x, dimension, tokens).get();
    return at::linear(all, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative();
    const TensorRanks ranks = held(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &given = gradients[0];
    const std::int64_t dimension = context->saved_data["dimension"].toInt();
    const std::int64_t tokens = context->saved_data["tokens"].toInt();
    const at::Tensor rows = rows_of(given);
    const bool needs_x = context->needs_input_grad(0), needs_weight = context->needs_input_grad(1);
    std::optional<Later> gathered, summed;
    if (needs_weight && dimension != whole) gathered = gather(ranks, x, dimension, tokens);
    if (needs_x) {
      std::vector<std::int64_t> sizes = given.sizes().vec();
      sizes.back() = weight.size(1);
      const at::Tensor part = rows.mm(weight).view(sizes);
      summed =
          dimension == whole ? sum_in_place(ranks, part) : sum_and_scatter(ranks, part, dimension);
    }
    variable_list result(6);
    if (needs_weight) {
      const at::Tensor all = gathered ? gathered->get() : x;
      result[1] = rows.t().mm(rows_of(all));
    }
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2))
      result[2] = rows.sum(0);
    if (needs_x) result[0] = summed->get();
    return result;
  }
};

struct RowProduct : torch::autograd::Function<RowProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const TensorRanks& ranks,
                            std::int64_t dimension) {
    hold_tokens(context, ranks, dimension, dimension == whole ? 0 : x.size(dimension),
                bias.has_value());
    save(context, x, weight);
    const at::Tensor part = at::linear(x, weight);
    at::Tensor y = dimension == whole ? sum_in_place(ranks, part).get()
                                      : sum_and_scatter(ranks, part, dimension).get();
    if (bias) y.add_(*bias);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative();
    const TensorRanks ranks = held(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const std::int64_t dimension = context->saved_data["dimension"].toInt();
    const at::Tensor given =
        dimension == whole
            ? gradients[0]
            : gather(ranks, gradients[0], dimension, context->saved_data["tokens"].toInt()).get();
    const at::Tensor rows = rows_of(given);
    variable_list result(5);
    if (context->needs_input_grad(0)) {
      std::vector<std::int64_t> sizes = given.sizes().vec();
      sizes.back() = weight.size(1);
      result[0] = rows.mm(weight).view(sizes);
    }
    if (context->needs_input_grad(1)) result[1] = rows.t().mm(rows_of(x));
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2))
      result[2] = rows.sum(0);
    return result;
  }
};

// Casts as autocast does for at::linear(). The products of the backward need the cast tensors,
// which autocast inside of the forward would hide.
at::Tensor cast(const at::Tensor& tensor, const at::Tensor& x) {
  const auto device = x.device().type();
  if (!tensor.defined() || !at::autocast::is_autocast_enabled(device)) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

void check(const TensorRanks& ranks, const at::Tensor& x, const at::Tensor& weight,
           const char* what) {
  if (x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1)) return;
  throw UsageError(text("'", ranks.layer(), "' on tensor rank ", ranks.rank(), " of ", ranks.size(),
                        " takes [..., ", weight.dim() == 2 ? weight.size(1) : -1, "], ", what,
                        "; got [", join(x.sizes(), ", "), "]"));
}

void check_tokens(const TensorRanks& ranks, const at::Tensor& x, const TokenShards& shards) {
  const std::int64_t own = ranks.own(shards.tokens).size;
  if (shards.dimension >= 0 && shards.dimension < x.dim() - 1 && x.size(shards.dimension) == own)
    return;
  throw UsageError(text("'", ranks.layer(), "' on tensor rank ", ranks.rank(), " of ", ranks.size(),
                        " takes ", own, " of ", shards.tokens, " tokens in dimension ",
                        shards.dimension, "; got [", join(x.sizes(), ", "), "]"));
}

void check_all_tokens(const TensorRanks& ranks, const at::Tensor& x, const TokenShards& shards) {
  if (shards.dimension >= 0 && shards.dimension < x.dim() - 1 &&
      x.size(shards.dimension) == shards.tokens)
    return;
  throw UsageError(text("'", ranks.layer(), "' takes all ", shards.tokens, " tokens in dimension ",
                        shards.dimension, "; got [", join(x.sizes(), ", "), "]"));
}

}  // namespace

NodeLayout layout_of_product(const torch::autograd::Node& node) {
  using torch::autograd::CppNode;
  if (dynamic_cast<const CppNode<ColumnProduct>*>(&node) != nullptr) return NodeLayout::Other;
  const auto* const row = dynamic_cast<const CppNode<RowProduct>*>(&node);
  if (row == nullptr) return NodeLayout::None;
  const bool shards = row->ctx_.saved_data.at("dimension").toInt() != whole;
  return shards ? NodeLayout::Other : NodeLayout::Replicated;
}

at::Tensor column_product(const TensorRanks& ranks, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias, const std::optional<TokenShards>& shards) {
  check(ranks, x, weight, "all inputs");
  if (shards) check_tokens(ranks, x, *shards);
  if (ranks.alone()) return at::linear(x, weight, bias);
  return ColumnProduct::apply(cast(x, x), cast(weight, x), if_there(cast(bias, x)), ranks,
                              token_dimension(shards), shards ? shards->tokens : 0);
}

at::Tensor row_product(const TensorRanks& ranks, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& bias, const std::optional<TokenShards>& shards) {
  check(ranks, x, weight, "its own inputs");
  if (shards) check_all_tokens(ranks, x, *shards);
  if (ranks.alone()) return at::linear(x, weight, bias);
  return RowProduct::apply(cast(x, x), cast(weight, x), if_there(cast(bias, x)), ranks,
                           token_dimension(shards));
}

at::Tensor column_input(const TensorRanks& ranks, const at::Tensor& x,
                        const std::optional<TokenShards>& shards) {
  if (shards) check_tokens(ranks, x, *shards);
  if (ranks.alone()) return x;
  if (!shards) return branch(ranks, Replicated(cast(x, x))).tensor;
  return gather_branched(ranks, Sharded(cast(x, x), shards->dimension, shards->tokens)).tensor;
}

at::Tensor row_output(const TensorRanks& ranks, const at::Tensor& own_term,
                      const std::optional<TokenShards>& shards) {
  if (shards) check_all_tokens(ranks, own_term, *shards);
  if (ranks.alone()) return own_term;
  if (!shards) return reduce(ranks, Partial(own_term)).tensor;
  return reduce_scatter(ranks, Partial(own_term), shards->dimension).tensor;
}

}  // namespace trestle::tensor_parallel
