#include "trestle/pipeline/execute/split_backward.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "trestle/device/torch_versions.h"

namespace trestle::pipeline {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::CopySlices;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Takes the place of an edge to a weight while I runs: the engine returns what arrives here.
struct WeightGradientBackward : Node {
  variable_list apply(variable_list&&) override { return {}; }
  std::string name() const override { return "WeightGradientBackward"; }
};

// The holders of the gradients of the outputs, before I.
class Holders {
 public:
  explicit Holders(const std::vector<at::Tensor>& gradients) {
    for (const at::Tensor& gradient : gradients)
      if (gradient.defined()) before_[gradient.unsafeGetTensorImpl()] = count(gradient);
  }
  // Whether a gradient that has arrived at an operator, and is kept, is held for another one too.
  bool has_others(const at::Tensor& gradient) const {
    constexpr std::size_t engine_and_kept = 2;
    const auto now = count(gradient);
    const auto found = before_.find(gradient.unsafeGetTensorImpl());
    if (found == before_.end()) return now.tensor > engine_and_kept || now.storage > 1;
    // The engine's first node holds it too.
    return now.tensor > found->second.tensor + engine_and_kept + 1 ||
           now.storage > found->second.storage;
  }

 private:
  struct Count {
    std::size_t tensor = 0, storage = 0;
  };
  static Count count(const at::Tensor& gradient) {
    return {.tensor = gradient.use_count(),
            .storage = gradient.has_storage() ? gradient.storage().use_count() : 0};
  }

  std::unordered_map<const c10::TensorImpl*, Count> before_;
};

// Keeps the gradients that arrive at an operator, for its second run in W. One that another branch
// has too is copied: that branch may change it in place.
struct KeepGradients final : torch::autograd::FunctionPreHook {
  KeepGradients(std::shared_ptr<variable_list> kept, const Holders& holders)
      : kept_(std::move(kept)), holders_(holders) {}
  variable_list operator()(const variable_list& gradients) override {
    *kept_ = gradients;
    for (at::Tensor& gradient : *kept_)
      if (gradient.defined() && holders_.has_others(gradient)) gradient = gradient.clone();
    return gradients;
  }

 private:
  std::shared_ptr<variable_list> kept_;
  const Holders& holders_;
};

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() && a.is_alias_of(b);
}

// An operator may pass its gradient on as it is, and the next one may change it in place before W
// reads it. Then W's gradient gets memory of its own.
struct OwnKeptGradients final : torch::autograd::FunctionPostHook {
  explicit OwnKeptGradients(std::shared_ptr<variable_list> kept) : kept_(std::move(kept)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    for (at::Tensor& gradient : *kept_)
      if (std::any_of(outputs.begin(), outputs.end(),
                      [&](const at::Tensor& output) { return share_memory(output, gradient); }))
        gradient = gradient.clone();
    return outputs;
  }

 private:
  std::shared_ptr<variable_list> kept_;
};

// After an operator has run in I: gives its weight gradients memory of their own, and frees what
// the operator has saved.
struct Release final : torch::autograd::FunctionPostHook {
  Release(Node& node, std::vector<std::size_t> weights)
      : node_(node), weights_(std::move(weights)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    node_.release_variables();
    variable_list owned = outputs;
    for (const std::size_t weight : weights_) {
      at::Tensor& gradient = owned.at(weight);
      bool shared = std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
        return share_memory(input, gradient);
      });
      for (std::size_t i = 0; i < owned.size(); ++i)
        shared = shared || (i != weight && share_memory(owned[i], gradient));
      if (shared) gradient = gradient.clone();
    }
    return owned;
  }

 private:
  Node& node_;
  const std::vector<std::size_t> weights_;
};

// Says to what an operator leads in the graph.
struct Below {
  bool is_input = false;
  bool input = false;      // an input, or a path to one
  bool parameter = false;  // a path to a leaf of another kind
};

// The graph from the outputs down to the inputs and the parameters.
class Graph {
 public:
  Graph(const std::vector<Edge>& outputs, const std::vector<Edge>& inputs) {
    for (const Edge& input : inputs)
      if (input.function) below_[input.function.get()] = {.is_input = true, .input = true};
    for (const Edge& output : outputs)
      if (output.function) walk(output.function.get());
  }

  const std::vector<Node*>& nodes() const { return nodes_; }  // children first
  Below below(const Node* node) const { return below_.at(node); }
  // Whether an edge leads to parameters only.
  bool is_weight(const Edge& edge) const {
    if (!edge.function) return false;
    const Below child = below(edge.function.get());
    return child.parameter && !child.input;
  }

 private:
  // Without recursion: a graph may be as deep as a model is long.
  void walk(Node* from) {
    if (!seen(from)) path_.push_back({from, 0});
    while (!path_.empty()) {
      auto& [node, next] = path_.back();
      if (!below_.at(node).is_input && next < node->next_edges().size()) {
        Node* child = node->next_edges()[next++].function.get();
        if (child && !seen(child)) path_.push_back({child, 0});
        continue;
      }
      finish(node);
      path_.pop_back();
    }
  }
  bool seen(Node* node) {
    const bool is_new = visited_.try_emplace(node, true).second;
    if (is_new) below_.try_emplace(node);
    return !is_new;
  }
  void finish(Node* node) {
    Below& own = below_.at(node);
    nodes_.push_back(node);
    if (own.is_input) return;
    if (dynamic_cast<AccumulateGrad*>(node)) own.parameter = true;
    for (const Edge& edge : node->next_edges()) {
      if (!edge.function) continue;
      const Below& child = below_.at(edge.function.get());
      own.input = own.input || child.input;
      own.parameter = own.parameter || child.parameter;
    }
  }

  std::unordered_map<const Node*, Below> below_;
  std::unordered_map<const Node*, bool> visited_;
  std::vector<Node*> nodes_;
  std::vector<std::pair<Node*, std::size_t>> path_;
};

// libtorch's operators compute what is asked of them (Node::should_compute_output()), and
// trestle's own ask context->needs_input_grad().
bool can_be_cut(const Node& node) {
  // An in-place change of a view, around the operator that made it.
  if (const auto* slices = dynamic_cast<const CopySlices*>(&node))
    return slices->fn && can_be_cut(*slices->fn);
  const std::string_view type = typeid(node).name();
  return type.starts_with("N5torch8autograd9generated") ||
         type.starts_with("N5torch8autograd7CppNodeIN7trestle");
}

// CopySlices compares its edges, except for that of the changed tensor, with those of its operator.
Edge replace_edge(Node& node, std::size_t index, const Edge& by) {
  if (auto* slices = dynamic_cast<CopySlices*>(&node); slices && slices->fn && index > 0)
    slices->fn->next_edges().at(index) = by;
  return std::exchange(node.next_edges().at(index), by);
}

bool is_small_parameter(const Node* node) {
  const auto* leaf = dynamic_cast<const AccumulateGrad*>(node);
  return leaf && leaf->variable.dim() <= 1;
}

Edge catching_edge(const Edge& replaced) {
  auto node = make_node<WeightGradientBackward>();
  const auto& expected = replaced.function->input_metadata(replaced.input_nr);
  if (expected.was_default_constructed())
    node->add_input_metadata(Node::undefined_input());
  else
    node->add_input_metadata(expected.options(), expected.shape_as_dim_vector(),
                             expected.is_tensor_subclass(), expected.is_nested_tensor(),
                             expected.grad_dtype());
  return {std::move(node), 0};
}

// The operators that run in I and again in W.
struct SharedOperator {
  Edge node;  // holds it
  std::shared_ptr<variable_list> gradients;
};

// A device's thread of autograd wakes the caller of a backward before it frees what the backward
// used. It takes this one, which has nothing to compute, when it has freed that.
void wait_until_freed(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Device> devices;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined() || gradient.device().is_cpu()) continue;  // the caller's own thread
    const at::Device device = gradient.device();
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) continue;
    devices.push_back(device);
    const at::AutoGradMode grad(true);
    const at::Tensor nothing = at::empty({0}, at::device(device));
    const at::Tensor leaf = nothing.detach().requires_grad_();
    torch::autograd::grad({leaf.view_as(leaf)}, {leaf}, {nothing});
  }
}

// Prepares a graph for I, and takes from it what W needs.
class Cutter {
 public:
  Cutter(const GradientRoots& outputs, const std::vector<Edge>& inputs,
         const std::vector<recompute::NodeRange>& recomputed)
      : outputs_(outputs),
        holders_(outputs.gradients),
        recomputed_(recomputed),
        graph_(outputs.edges, inputs) {
    for (const Edge& input : inputs) {
      if (input.function) asked_.push_back(input);
    }
    inputs_asked_ = asked_.size();
  }

  SplitBackward run(const std::vector<Edge>& inputs) {
    prepare();
    SplitBackward result;
    result.whole = std::move(whole_);
    variable_list got;
    if (!asked_.empty() && reaches_inputs()) {
      got = torch::autograd::Engine::get_default_engine().execute(
          outputs_.edges, outputs_.gradients, /*keep_graph=*/true, /*create_graph=*/false,
          /*accumulate_grad=*/false, asked_);
      wait_until_freed(outputs_.gradients);
    }
    std::size_t next = 0;
    for (const Edge& input : inputs) {
      auto& gradient = result.input_gradients.emplace_back();
      if (input.function && next < got.size()) gradient = std::move(got[next++]);
    }
    result.weights = WeightGradients(weights(got));
    return result;
  }

 private:
  bool reaches_inputs() const {
    return std::any_of(outputs_.edges.begin(), outputs_.edges.end(), [&](const Edge& output) {
      return output.function && graph_.below(output.function.get()).input;
    });
  }

  bool is_recomputed(const Node& node) const {
    return std::any_of(recomputed_.begin(), recomputed_.end(),
                       [&](const auto& range) { return range.has(node.sequence_nr()); });
  }

  void prepare() {
    for (Node* node : graph_.nodes()) {
      const Below below = graph_.below(node);
      if (below.is_input || !below.input) continue;
      std::vector<std::size_t> weights;
      for (std::size_t i = 0; i < node->next_edges().size(); ++i)
        if (graph_.is_weight(node->next_edges()[i])) weights.push_back(i);
      if (!weights.empty()) {
        const bool small = std::all_of(weights.begin(), weights.end(), [&](std::size_t i) {
          return is_small_parameter(node->next_edges()[i].function.get());
        });
        const bool cut = can_be_cut(*node) && !is_recomputed(*node);
        if (!cut) whole_.push_back(node->sequence_nr());
        if (cut && !small) {
          share(*node);
          continue;
        }
        for (const std::size_t i : weights) {
          asked_.push_back(catching_edge(node->next_edges()[i]));
          caught_.push_back(replace_edge(*node, i, asked_.back()));
        }
      }
      node->add_post_hook(std::make_unique<Release>(*node, std::move(weights)));
    }
  }

  void share(Node& node) {
    auto kept = std::make_shared<variable_list>();
    node.add_pre_hook(std::make_unique<KeepGradients>(kept, holders_));
    node.add_post_hook(std::make_unique<OwnKeptGradients>(kept));
    shared_.push_back({Edge(node.getptr(), 0), std::move(kept)});
  }

  GradientRoots weights(variable_list& got) {
    GradientRoots roots;
    // Branches of the outputs that depend on no input.
    for (std::size_t i = 0; i < outputs_.edges.size(); ++i)
      if (graph_.is_weight(outputs_.edges[i])) roots.add(outputs_.edges[i], outputs_.gradients[i]);
    for (std::size_t i = 0; i < caught_.size() && !got.empty(); ++i)
      if (at::Tensor& gradient = got[inputs_asked_ + i]; gradient.defined())
        roots.add(std::move(caught_[i]), std::move(gradient));
    for (SharedOperator& op : shared_) {
      Node& node = *op.node.function;
      // Its hooks have run in I.
      node.pre_hooks().clear();
      node.tensor_pre_hooks().clear();
      node.retains_grad_hooks().clear();
      node.post_hooks().clear();
      for (std::size_t i = 0; i < node.next_edges().size(); ++i)
        if (!graph_.is_weight(node.next_edges()[i])) replace_edge(node, i, Edge());
      for (std::size_t i = 0; i < op.gradients->size(); ++i)
        if (at::Tensor& gradient = (*op.gradients)[i]; gradient.defined())
          roots.add(Edge(op.node.function, static_cast<std::uint32_t>(i)), std::move(gradient));
    }
    return roots;
  }

  const GradientRoots& outputs_;
  const Holders holders_;
  const std::vector<recompute::NodeRange>& recomputed_;
  Graph graph_;
  std::vector<Edge> asked_;  // the inputs, and then the edges that catch weight gradients
  std::size_t inputs_asked_ = 0;
  std::vector<Edge> caught_;  // the edges that those replace
  std::vector<SharedOperator> shared_;
  std::vector<std::uint64_t> whole_;
};

}  // namespace

void WeightGradients::accumulate() {
  const GradientRoots roots = std::exchange(roots_, {});
  if (roots.edges.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(roots.edges, roots.gradients,
                                                        /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

SplitBackward backward_to_inputs(const GradientRoots& outputs, const std::vector<Edge>& inputs,
                                 const std::vector<recompute::NodeRange>& recomputed) {
  return Cutter(outputs, inputs, recomputed).run(inputs);
}

}  // namespace trestle::pipeline
