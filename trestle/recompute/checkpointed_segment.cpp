#include "trestle/recompute/checkpointed_segment.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/snapshot.h"
#include "trestle/recompute/detail/checkpointed_forward.h"

namespace trestle::nn {

using Span = CheckpointedSegment::Span;

namespace {

enum class SegmentKind { Kept, Recomputed };

// Consecutive layers that run as one unit.
struct PlannedSegment {
  PlannedSegment(const Graph& graph, Span span, SegmentKind kind);

  Span span;
  SegmentKind kind;
  Segment segment;
  std::vector<ValueId> last_uses = {};  // inputs that no later layer takes
  std::shared_ptr<const ModuleState> modules;
  Boundary boundary;
};

// The values of the edges for which is_wanted(edge), each once.
template <class IsWanted>
std::vector<ValueId> values_of_edges(const Graph& graph, const IsWanted& is_wanted) {
  std::vector<ValueId> values;
  for (const Edge& edge : graph.edges) {
    const ValueId value{edge.from_layer, edge.from_output};
    if (is_wanted(edge) && std::find(values.begin(), values.end(), value) == values.end())
      values.push_back(value);
  }
  return values;
}

std::vector<ValueId> taken_from_before(const Graph& graph, Span span) {
  return values_of_edges(graph, [&](const Edge& edge) {
    return edge.to_layer >= span.first && edge.to_layer < span.last && edge.from_layer < span.first;
  });
}

std::vector<ValueId> given_to_later(const Graph& graph, Span span) {
  return values_of_edges(graph, [&](const Edge& edge) {
    return edge.from_layer >= span.first && edge.from_layer < span.last &&
           edge.to_layer >= span.last;
  });
}

std::vector<std::string> input_words(const Segment& segment) {
  std::vector<std::string> words;
  for (const ValueId& value : segment.inputs())
    words.push_back("the value of " + segment.describe(value));
  return words;
}

PlannedSegment::PlannedSegment(const Graph& graph, Span span, SegmentKind kind)
    : span(span),
      kind(kind),
      segment(graph, span.first, span.last, taken_from_before(graph, span),
              given_to_later(graph, span)),
      modules(std::make_shared<ModuleState>(ModuleState::of(graph, span.first, span.last))),
      boundary(words_for(graph, span), input_words(segment)) {}

// Identifies runs that may write to different inputs.
std::uint64_t mode_of(const ModuleState& modules, const Values& inputs) {
  std::uint64_t mode = 0;
  const auto mix = [&](bool flag) { mode = keyed_seed(mode, flag ? 1 : 0, 0, 0); };
  for (const bool flag : modules.training_flags()) mix(flag);
  for (const bool flag : modules.trained_flags()) mix(flag);
  for (const at::Tensor& input : inputs) mix(input.defined() && input.requires_grad());
  return mode;
}

Segment::Result run_recomputed(const std::shared_ptr<const void>& owner, PlannedSegment& planned,
                               const CheckpointOptions& options, Values inputs,
                               std::vector<std::optional<SharedWith>> shared,
                               std::optional<RunKey> key) {
  const std::vector<bool> owned(inputs.size(), false);
  auto handed = planned.boundary.hand_over(inputs, owned, mode_of(*planned.modules, inputs));
  const auto again = [owner, &planned, shared, key](Values values) {
    (void)planned.segment.run(std::move(values), shared, key ? &*key : nullptr);
  };
  const Values kept = inputs;
  recompute::CheckpointedForward run(options, std::move(inputs), handed.values, planned.modules,
                                     again);
  auto result =
      planned.segment.run(std::exchange(handed.values, {}), shared, key ? &*key : nullptr);
  planned.boundary.take_back(handed);
  if (!run.finish(result.outputs)) return result;
  // A later layer may write to its inputs, and the recomputation starts from these inputs.
  for (at::Tensor& output : result.outputs) {
    const auto is_shared = [&](const at::Tensor& input) { return may_share_memory(input, output); };
    if (std::any_of(kept.begin(), kept.end(), is_shared)) output = output.clone();
  }
  return result;
}

std::vector<ValueId> inputs_of(const Graph& model) {
  std::vector<ValueId> inputs;
  for (int i = 0; i < model.inputs; ++i) inputs.push_back({.layer = model_input, .output = i});
  return inputs;
}

std::vector<ValueId> outputs_of(const Graph& model) {
  std::vector<ValueId> outputs(static_cast<std::size_t>(model.outputs));
  for (const Edge& edge : model.edges)
    if (edge.to_layer == static_cast<int>(model.layers.size()))
      outputs[static_cast<std::size_t>(edge.to_argument)] = {edge.from_layer, edge.from_output};
  return outputs;
}

}  // namespace

struct CheckpointedSegment::Plan {
  std::shared_ptr<const Graph> graph;
  Segment whole;  // checks the inputs and outputs, and describes values
  CheckpointOptions options;
  std::vector<std::unique_ptr<PlannedSegment>> segments = {};
};

CheckpointedSegment::CheckpointedSegment(std::shared_ptr<const Graph> graph, Span layers,
                                         const std::vector<Span>& spans,
                                         std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                                         CheckpointOptions options) {
  Segment whole(*graph, layers.first, layers.last, std::move(inputs), std::move(outputs));
  plan_ = std::make_shared<Plan>(
      Plan{.graph = std::move(graph), .whole = std::move(whole), .options = std::move(options)});
  const auto add = [&](Span span, SegmentKind kind) {
    if (span.first < span.last)
      plan_->segments.push_back(std::make_unique<PlannedSegment>(*plan_->graph, span, kind));
  };
  int done = layers.first;
  for (const Span& span : spans) {
    add({.first = done, .last = span.first}, SegmentKind::Kept);
    add(span, SegmentKind::Recomputed);
    done = span.last;
  }
  add({.first = done, .last = layers.last}, SegmentKind::Kept);
  for (const auto& planned : plan_->segments) {
    for (const ValueId& value : planned->segment.inputs()) {
      const bool later = std::any_of(
          plan_->graph->edges.begin(), plan_->graph->edges.end(), [&](const Edge& edge) {
            return ValueId{edge.from_layer, edge.from_output} == value &&
                   edge.to_layer >= planned->span.last && edge.to_layer < layers.last;
          });
      const auto& kept = plan_->whole.outputs();
      if (!later && std::find(kept.begin(), kept.end(), value) == kept.end())
        planned->last_uses.push_back(value);
    }
  }
}

CheckpointedSegment::CheckpointedSegment(const std::shared_ptr<const Graph>& model,
                                         const std::vector<Span>& spans, CheckpointOptions options)
    : CheckpointedSegment(model, {.first = 0, .last = static_cast<int>(model->layers.size())},
                          spans, inputs_of(*model), outputs_of(*model), std::move(options)) {}

Values CheckpointedSegment::run_model(const Values& inputs, const RunKey* key) const {
  if (const int wanted = graph().inputs; static_cast<int>(inputs.size()) != wanted)
    throw UsageError(text("the model takes ", wanted, " input tensor(s) but got ", inputs.size()));
  return run(inputs, {}, key).outputs;
}

Segment::Result CheckpointedSegment::run(
    Values inputs, const std::vector<std::optional<SharedWith>>& inputs_shared,
    const RunKey* key) const {
  struct Made {
    Value value;
    std::optional<SharedWith> shared;
  };
  std::map<ValueId, Made> made;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    made[plan_->whole.inputs()[i]] = {
        .value = std::move(inputs[i]),
        .shared = inputs_shared.empty() ? std::nullopt : inputs_shared[i]};
  inputs.clear();
  Segment::Result all;
  for (const auto& planned : plan_->segments) {
    Values taken;
    std::vector<std::optional<SharedWith>> shared;
    for (const ValueId& value : planned->segment.inputs()) {
      taken.push_back(made.at(value).value);
      shared.push_back(made.at(value).shared);
    }
    for (const ValueId& value : planned->last_uses) made.at(value).value = Value();
    auto result = planned->kind == SegmentKind::Recomputed && recompute::gradients_are_on()
                      ? run_recomputed(plan_, *planned, plan_->options, std::move(taken),
                                       std::move(shared), key ? std::optional(*key) : std::nullopt)
                      : planned->segment.run(std::move(taken), shared, key);
    for (std::size_t i = 0; i < result.outputs.size(); ++i)
      made[planned->segment.outputs()[i]] = {.value = std::move(result.outputs[i]),
                                             .shared = result.outputs_shared[i]};
    if (!all.node_numbers.empty()) all.node_numbers.pop_back();
    all.node_numbers.insert(all.node_numbers.end(), result.node_numbers.begin(),
                            result.node_numbers.end());
  }
  for (const ValueId& value : plan_->whole.outputs()) {
    all.outputs.push_back(made.at(value).value);
    all.outputs_shared.push_back(made.at(value).shared);
  }
  return all;
}

const std::vector<ValueId>& CheckpointedSegment::inputs() const { return plan_->whole.inputs(); }
const std::vector<ValueId>& CheckpointedSegment::outputs() const { return plan_->whole.outputs(); }
std::string CheckpointedSegment::describe(ValueId value) const {
  return plan_->whole.describe(value);
}
const Graph& CheckpointedSegment::graph() const { return *plan_->graph; }

std::vector<Span> CheckpointedSegment::recomputed() const {
  std::vector<Span> spans;
  for (const auto& planned : plan_->segments)
    if (planned->kind == SegmentKind::Recomputed) spans.push_back(planned->span);
  return spans;
}

std::vector<Span> cut_evenly(Span layers, int segments) {
  const int count = layers.last - layers.first;
  segments = std::min(segments, count);
  std::vector<Span> spans;
  for (int i = 0; i < segments; ++i)
    spans.push_back({.first = layers.first + i * count / segments,
                     .last = layers.first + (i + 1) * count / segments});
  return spans;
}

std::string words_for(const Graph& graph, Span layers) {
  const std::string& begin = graph.layers[static_cast<std::size_t>(layers.first)].name;
  const std::string& end = graph.layers[static_cast<std::size_t>(layers.last) - 1].name;
  return layers.first + 1 == layers.last ? text("layer '", begin, "'")
                                         : text("the layers '", begin, "' to '", end, "'");
}

}  // namespace trestle::nn
