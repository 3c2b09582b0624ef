#include "trestle/recompute/checkpointed.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/segment.h"
#include "trestle/nn/snapshot.h"
#include "trestle/recompute/detail/checkpointed_forward.h"

namespace trestle::nn {

// Layers [first, last).
struct Checkpointed::Span {
  int first = 0;
  int last = 0;
};

namespace {

enum class SegmentKind { Kept, Recomputed };

// Consecutive layers that run as one unit.
struct PlannedSegment {
  PlannedSegment(const Graph& graph, int first, int last, SegmentKind kind);

  int first;
  int last;
  SegmentKind kind;
  Segment segment;
  std::vector<ValueId> last_uses;  // inputs that no later layer takes
  std::shared_ptr<const ModuleState> modules;
  Boundary boundary;
};

std::vector<ValueId> taken_from_before(const Graph& graph, int first, int last) {
  std::vector<ValueId> values;
  for (const Edge& edge : graph.edges) {
    const ValueId value{edge.from_layer, edge.from_output};
    const bool taken = edge.to_layer >= first && edge.to_layer < last && edge.from_layer < first;
    if (taken && std::find(values.begin(), values.end(), value) == values.end())
      values.push_back(value);
  }
  return values;
}

std::vector<ValueId> given_to_later(const Graph& graph, int first, int last) {
  std::vector<ValueId> values;
  for (const Edge& edge : graph.edges) {
    const ValueId value{edge.from_layer, edge.from_output};
    const bool given = edge.from_layer >= first && edge.from_layer < last && edge.to_layer >= last;
    if (given && std::find(values.begin(), values.end(), value) == values.end())
      values.push_back(value);
  }
  return values;
}

std::string words_for(const Graph& graph, int first, int last) {
  const std::string& begin = graph.layers[static_cast<std::size_t>(first)].name;
  const std::string& end = graph.layers[static_cast<std::size_t>(last) - 1].name;
  return first + 1 == last ? text("layer '", begin, "'")
                           : text("the layers '", begin, "' to '", end, "'");
}

std::vector<std::string> input_words(const Segment& segment) {
  std::vector<std::string> words;
  for (const ValueId& value : segment.inputs())
    words.push_back("the value of " + segment.describe(value));
  return words;
}

PlannedSegment::PlannedSegment(const Graph& graph, int first, int last, SegmentKind kind)
    : first(first),
      last(last),
      kind(kind),
      segment(graph, first, last, taken_from_before(graph, first, last),
              given_to_later(graph, first, last)),
      modules(std::make_shared<ModuleState>(ModuleState::of(graph, first, last))),
      boundary(words_for(graph, first, last), input_words(segment)) {
  for (const ValueId& value : segment.inputs()) {
    const bool later = std::any_of(graph.edges.begin(), graph.edges.end(), [&](const Edge& edge) {
      return ValueId{edge.from_layer, edge.from_output} == value && edge.to_layer >= last;
    });
    if (!later) last_uses.push_back(value);
  }
}

// Identifies runs that may write to different inputs.
std::uint64_t mode_of(const ModuleState& modules, const Values& inputs) {
  std::uint64_t mode = 0;
  const auto mix = [&](bool flag) { mode = keyed_seed(mode, flag ? 1 : 0, 0, 0); };
  for (const bool flag : modules.training_flags()) mix(flag);
  for (const bool flag : modules.trained_flags()) mix(flag);
  for (const at::Tensor& input : inputs) mix(input.defined() && input.requires_grad());
  return mode;
}

}  // namespace

struct Checkpointed::Plan {
  Graph graph;
  CheckpointOptions options;
  std::vector<std::unique_ptr<PlannedSegment>> segments;
};

Checkpointed::Checkpointed(const Layers& layers, const std::vector<Span>& spans,
                           const CheckpointOptions& options)
    : plan_(std::make_shared<Plan>()) {
  plan_->graph = layers.graph();
  plan_->options = options;
  const auto add = [&](int first, int last, SegmentKind kind) {
    if (first < last)
      plan_->segments.push_back(std::make_unique<PlannedSegment>(plan_->graph, first, last, kind));
  };
  int done = 0;
  for (const Span& span : spans) {
    add(done, span.first, SegmentKind::Kept);
    add(span.first, span.last, SegmentKind::Recomputed);
    done = span.last;
  }
  add(done, static_cast<int>(plan_->graph.layers.size()), SegmentKind::Kept);
}

Checkpointed Checkpointed::in_segments(int segments, const Layers& layers,
                                       const CheckpointOptions& options) {
  const int count = static_cast<int>(layers.size());
  if (segments < 1 || segments > count) {
    throw UsageError(text("cannot cut ", count, " layers into ", segments, " segments"),
                     {.hint = text("Choose between 1 and ", count, " segments.")});
  }
  std::vector<Span> spans;
  for (int i = 0; i + 1 < segments; ++i)
    spans.push_back({.first = i * count / segments, .last = (i + 1) * count / segments});
  return {layers, spans, options};
}

Checkpointed Checkpointed::every(int k, const Layers& layers, const CheckpointOptions& options) {
  if (k < 1)
    throw UsageError(text("cannot recompute every ", k, "th layer"), {.hint = "Give 1 or more."});
  std::vector<Span> spans;
  for (int i = k; i <= static_cast<int>(layers.size()); i += k)
    spans.push_back({.first = i - 1, .last = i});
  return {layers, spans, options};
}

Checkpointed Checkpointed::units(const std::vector<std::string>& names, const Layers& layers,
                                 const CheckpointOptions& options) {
  const Graph graph = layers.graph();
  const int count = static_cast<int>(graph.layers.size());
  std::map<int, int> found;  // first layer -> last layer
  for (const std::string& name : names) {
    Span span{.first = count, .last = 0};
    std::vector<std::string> known;
    for (int i = 0; i < count; ++i) {
      const std::string& layer = graph.layers[static_cast<std::size_t>(i)].name;
      known.push_back(layer);
      if (layer != name && !layer.starts_with(name + ".")) continue;
      span.first = std::min(span.first, i);
      span.last = i + 1;
    }
    if (span.last == 0) {
      throw UsageError(text("the model has no layer '", name, "'", did_you_mean(name, known)),
                       {.hint = "Give names of layers or of nested models."});
    }
    const auto [before, is_new] = found.emplace(span.first, span.last);
    if (!is_new) throw UsageError(text("'", name, "' is a unit already, or part of one"));
  }
  std::vector<Span> spans;
  for (const auto& [first, last] : found) {
    if (!spans.empty() && first < spans.back().last) {
      throw UsageError(text(words_for(graph, first, last), " are part of another listed unit"),
                       {.hint = "List the nested model or its layers, not both."});
    }
    spans.push_back({.first = first, .last = last});
  }
  return {layers, spans, options};
}

namespace {

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

}  // namespace

Values Checkpointed::run(const Values& inputs, const RunKey* key) const {
  const Graph& graph = plan_->graph;
  if (static_cast<int>(inputs.size()) != graph.inputs) {
    throw UsageError(
        text("the model takes ", graph.inputs, " input tensor(s) but got ", inputs.size()));
  }
  struct Made {
    Value value;
    std::optional<SharedWith> shared;
  };
  std::map<ValueId, Made> made;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    made[{model_input, static_cast<int>(i)}] = {.value = inputs[i], .shared = {}};
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
      made[planned->segment.outputs()[i]] = {.value = result.outputs[i],
                                             .shared = result.outputs_shared[i]};
  }
  Values outputs(static_cast<std::size_t>(graph.outputs));
  for (const Edge& edge : graph.edges) {
    if (edge.to_layer == static_cast<int>(graph.layers.size()))
      outputs[static_cast<std::size_t>(edge.to_argument)] =
          made.at({edge.from_layer, edge.from_output}).value;
  }
  return outputs;
}

Values Checkpointed::forward(const Values& inputs) const { return run(inputs, nullptr); }

Values Checkpointed::forward(const Values& inputs, const RunKey& key) const {
  return run(inputs, &key);
}

at::Tensor Checkpointed::forward(const at::Tensor& input) const {
  const Graph& graph = plan_->graph;
  if (graph.inputs != 1 || graph.outputs != 1) {
    throw UsageError(
        text("the model takes ", graph.inputs, " tensor(s) and returns ", graph.outputs),
        {.hint = "Call forward() with a std::vector of tensors."});
  }
  return run({input}, nullptr)[0];
}

std::vector<std::vector<std::string>> Checkpointed::recomputed() const {
  std::vector<std::vector<std::string>> units;
  for (const auto& planned : plan_->segments) {
    if (planned->kind != SegmentKind::Recomputed) continue;
    auto& names = units.emplace_back();
    for (int i = planned->first; i < planned->last; ++i)
      names.push_back(plan_->graph.layers[static_cast<std::size_t>(i)].name);
  }
  return units;
}

at::Tensor checkpoint_sequential(int segments, const Layers& layers, const at::Tensor& input,
                                 const CheckpointOptions& options) {
  return Checkpointed::in_segments(segments, layers, options).forward(input);
}

}  // namespace trestle::nn
