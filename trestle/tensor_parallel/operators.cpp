#include "trestle/tensor_parallel/operators.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <unordered_set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tensor_parallel/collectives.h"
#include "trestle/tensor_parallel/held_ranks.h"
#include "trestle/tensor_parallel/node_layout.h"

namespace trestle::tensor_parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Node;
using torch::autograd::variable_list;

// The backward of each operator is another one, so that gradients can be differentiated again.
void hold_shape(AutogradContext* context, const TensorRanks& ranks, std::int64_t dimension,
                std::int64_t whole) {
  hold(context, ranks);
  context->saved_data["dimension"] = dimension;
  context->saved_data["whole"] = whole;
}
std::int64_t dimension_of(AutogradContext* context) {
  return context->saved_data["dimension"].toInt();
}
std::int64_t whole_of(AutogradContext* context) { return context->saved_data["whole"].toInt(); }

struct Branch : torch::autograd::Function<Branch> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const TensorRanks& ranks) {
    hold(context, ranks);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients);
};

struct ReducePartial : torch::autograd::Function<ReducePartial> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const TensorRanks& ranks) {
    hold(context, ranks);
    return sum(ranks, x).get();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {Branch::apply(gradients[0], held(context)), {}};
  }
};

variable_list Branch::backward(AutogradContext* context, const variable_list& gradients) {
  return {ReducePartial::apply(gradients[0], held(context)), {}};
}

struct Scatter : torch::autograd::Function<Scatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const TensorRanks& ranks,
                            std::int64_t dimension) {
    hold_shape(context, ranks, dimension, x.size(dimension));
    return own_shard(ranks, x, dimension);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients);
};

struct GatherReplicated : torch::autograd::Function<GatherReplicated> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const TensorRanks& ranks,
                            std::int64_t dimension, std::int64_t whole) {
    hold_shape(context, ranks, dimension, whole);
    return gather(ranks, x, dimension, whole).get();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {Scatter::apply(gradients[0], held(context), dimension_of(context)), {}, {}, {}};
  }
};

variable_list Scatter::backward(AutogradContext* context, const variable_list& gradients) {
  return {GatherReplicated::apply(gradients[0], held(context), dimension_of(context),
                                  whole_of(context)),
          {},
          {}};
}

struct GatherBranched : torch::autograd::Function<GatherBranched> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const TensorRanks& ranks,
                            std::int64_t dimension, std::int64_t whole) {
    hold_shape(context, ranks, dimension, whole);
    return gather(ranks, x, dimension, whole).get();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients);
};

struct ReduceScatter : torch::autograd::Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const TensorRanks& ranks,
                            std::int64_t dimension) {
    hold_shape(context, ranks, dimension, x.size(dimension));
    return sum_and_scatter(ranks, x, dimension).get();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {GatherBranched::apply(gradients[0], held(context), dimension_of(context),
                                  whole_of(context)),
            {},
            {}};
  }
};

variable_list GatherBranched::backward(AutogradContext* context, const variable_list& gradients) {
  return {ReduceScatter::apply(gradients[0], held(context), dimension_of(context)), {}, {}, {}};
}

struct Exchange : torch::autograd::Function<Exchange> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const TensorRanks& ranks,
                            std::int64_t from, std::int64_t whole, std::int64_t to) {
    hold_shape(context, ranks, from, whole);
    context->saved_data["to"] = to;
    context->saved_data["whole_to"] = x.size(to);
    return exchange_shards(ranks, x, from, whole, to).get();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor gradient =
        Exchange::apply(gradients[0], held(context), context->saved_data["to"].toInt(),
                        context->saved_data["whole_to"].toInt(), dimension_of(context));
    return {gradient, {}, {}, {}, {}};
  }
};

// Gradients of one dtype travel as one message.
struct BranchParameters : torch::autograd::Function<BranchParameters> {
  static variable_list forward(AutogradContext* context, at::TensorList parameters,
                               const TensorRanks& ranks) {
    hold(context, ranks);
    variable_list views;
    for (const at::Tensor& one : parameters) views.push_back(one.view_as(one));
    return views;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& one : gradients) flat.push_back(one.flatten());
    const at::Tensor all = sum_in_place(held(context), at::cat(flat)).get();
    variable_list sums;
    std::int64_t at = 0;
    for (const at::Tensor& one : gradients) {
      sums.push_back(all.narrow(0, at, one.numel()).view(one.sizes()).to(one.scalar_type()));
      at += one.numel();
    }
    sums.emplace_back();
    return sums;
  }
};

template <class Function>
bool is_node_of(const Node& node) {
  return dynamic_cast<const torch::autograd::CppNode<Function>*>(&node) != nullptr;
}

}  // namespace

NodeLayout layout_of(const Node& node) {
  if (is_node_of<Branch>(node) || is_node_of<GatherBranched>(node) ||
      is_node_of<BranchParameters>(node))
    return NodeLayout::Branched;
  if (is_node_of<ReducePartial>(node) || is_node_of<GatherReplicated>(node))
    return NodeLayout::Replicated;
  if (is_node_of<Scatter>(node) || is_node_of<ReduceScatter>(node) || is_node_of<Exchange>(node))
    return NodeLayout::Other;
  if (const NodeLayout layout = layout_of_loss(node); layout != NodeLayout::None) return layout;
  return layout_of_product(node);
}

namespace {

// Whether x was computed from a tensor of this layout, with no other layout on the way.
bool comes_from(const at::Tensor& x, NodeLayout wrong) {
  if (!x.defined() || !x.grad_fn()) return false;
  std::vector<Node*> waiting = {x.grad_fn().get()};
  std::unordered_set<Node*> seen = {waiting.front()};
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    const NodeLayout layout = layout_of(*node);
    if (layout == wrong) return true;
    if (layout != NodeLayout::None) continue;
    for (const auto& edge : node->next_edges())
      if (edge.is_valid() && seen.insert(edge.function.get()).second)
        waiting.push_back(edge.function.get());
  }
  return false;
}

void refuse_unreduced(const at::Tensor& x) {
  if (!comes_from(x, NodeLayout::Branched)) return;
  throw UsageError(
      "a tensor cannot be Replicated: it was computed from a Branched one, of which each rank has "
      "a part of the gradient, and not reduced or gathered since",
      {.hint = "If each rank computed a term of a sum, call reduce() of a Partial. If each rank "
               "computed a slice, call gather() of a Sharded."});
}

void refuse_unbranched(const at::Tensor& x, const char* type) {
  if (!comes_from(x, NodeLayout::Replicated)) return;
  throw UsageError(
      text("a tensor cannot be ", type,
           ": it was computed from a Replicated one, whose gradient must be whole on every rank, "
           "and this rank computes a part of it"),
      {.hint = "Call branch(), or gather_branched() in place of gather(), before the work that "
               "each rank does a part of."});
}

}  // namespace

Replicated::Replicated(at::Tensor x) : tensor(std::move(x)) { refuse_unreduced(tensor); }

Partial::Partial(at::Tensor x) : tensor(std::move(x)) { refuse_unbranched(tensor, "Partial"); }

Sharded::Sharded(at::Tensor x, std::int64_t along, std::int64_t indices)
    : tensor(std::move(x)), dimension(along < 0 ? along + tensor.dim() : along), whole(indices) {
  if (dimension < 0 || dimension >= tensor.dim())
    throw UsageError(text("a tensor of ", tensor.dim(), " dimensions has no dimension ", along));
  refuse_unbranched(tensor, "Sharded");
}

// Makes the types without their checks: the operators make what they say.
struct Trusted {
  static Replicated replicated(at::Tensor x) {
    Replicated made;
    made.tensor = std::move(x);
    return made;
  }
  static Branched branched(at::Tensor x) {
    Branched made;
    made.tensor = std::move(x);
    return made;
  }
  static Sharded sharded(at::Tensor x, std::int64_t dimension, std::int64_t whole) {
    Sharded made;
    made.tensor = std::move(x);
    made.dimension = dimension;
    made.whole = whole;
    return made;
  }
};

namespace {

void check_shard(const TensorRanks& ranks, const Sharded& x) {
  const std::int64_t own = ranks.own(x.whole).size, has = x.tensor.size(x.dimension);
  if (own == has) return;
  throw UsageError(text("rank ", ranks.rank(), " of ", ranks.size(), " tensor ranks holds ", own,
                        " of ", x.whole, " indices of dimension ", x.dimension, "; its tensor has ",
                        has));
}

std::int64_t checked_dimension(const at::Tensor& x, std::int64_t dimension) {
  const std::int64_t along = dimension < 0 ? dimension + x.dim() : dimension;
  if (along < 0 || along >= x.dim())
    throw UsageError(text("a tensor of ", x.dim(), " dimensions has no dimension ", dimension));
  return along;
}

}  // namespace

Branched branch(const TensorRanks& ranks, const Replicated& x) {
  return Trusted::branched(ranks.alone() ? x.tensor : Branch::apply(x.tensor, ranks));
}

Replicated reduce(const TensorRanks& ranks, const Partial& x) {
  return Trusted::replicated(ranks.alone() ? x.tensor : ReducePartial::apply(x.tensor, ranks));
}

Sharded scatter(const TensorRanks& ranks, const Replicated& x, std::int64_t dimension) {
  const std::int64_t along = checked_dimension(x.tensor, dimension);
  return Trusted::sharded(ranks.alone() ? x.tensor : Scatter::apply(x.tensor, ranks, along), along,
                          x.tensor.size(along));
}

Replicated gather(const TensorRanks& ranks, const Sharded& x) {
  check_shard(ranks, x);
  return Trusted::replicated(
      ranks.alone() ? x.tensor : GatherReplicated::apply(x.tensor, ranks, x.dimension, x.whole));
}

Branched gather_branched(const TensorRanks& ranks, const Sharded& x) {
  check_shard(ranks, x);
  return Trusted::branched(
      ranks.alone() ? x.tensor : GatherBranched::apply(x.tensor, ranks, x.dimension, x.whole));
}

Sharded reduce_scatter(const TensorRanks& ranks, const Partial& x, std::int64_t dimension) {
  const std::int64_t along = checked_dimension(x.tensor, dimension);
  return Trusted::sharded(ranks.alone() ? x.tensor : ReduceScatter::apply(x.tensor, ranks, along),
                          along, x.tensor.size(along));
}

Sharded exchange(const TensorRanks& ranks, const Sharded& x, std::int64_t to) {
  check_shard(ranks, x);
  const std::int64_t along = checked_dimension(x.tensor, to);
  if (along == x.dimension)
    throw UsageError(text("exchange() of shards along dimension ", along, " to the same one"));
  return Trusted::sharded(
      ranks.alone() ? x.tensor : Exchange::apply(x.tensor, ranks, x.dimension, x.whole, along),
      along, x.tensor.size(along));
}

std::vector<at::Tensor> branch_parameters(const TensorRanks& ranks,
                                          const std::vector<at::Tensor>& parameters) {
  if (ranks.alone() || !at::GradMode::is_enabled()) return parameters;
  variable_list defined;
  for (const at::Tensor& one : parameters)
    if (one.defined() && one.requires_grad()) defined.push_back(one);
  if (defined.empty()) return parameters;
  const variable_list views = BranchParameters::apply(at::TensorList(defined), ranks);
  std::vector<at::Tensor> all = parameters;
  std::size_t next = 0;
  for (at::Tensor& one : all)
    if (one.defined() && one.requires_grad()) one = views[next++];
  return all;
}

}  // namespace trestle::tensor_parallel
