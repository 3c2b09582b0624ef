#include "trestle/recompute/checkpointed.h"

#include <algorithm>
#include <map>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/graph.h"
#include "trestle/recompute/checkpointed_segment.h"

namespace trestle::nn {

using Span = CheckpointedSegment::Span;

namespace {

CheckpointedSegment plan(const Layers& layers, const std::vector<Span>& spans,
                         const CheckpointOptions& options) {
  return {std::make_shared<const Graph>(layers.graph()), spans, options};
}

}  // namespace

Checkpointed::Checkpointed(CheckpointedSegment layers)
    : layers_(std::make_shared<const CheckpointedSegment>(std::move(layers))) {}

Checkpointed Checkpointed::in_segments(int segments, const Layers& layers,
                                       const CheckpointOptions& options) {
  const int count = static_cast<int>(layers.size());
  if (segments < 1 || segments > count) {
    throw UsageError(text("cannot cut ", count, " layers into ", segments, " segments"),
                     {.hint = text("Choose between 1 and ", count, " segments.")});
  }
  std::vector<Span> spans = cut_evenly({.first = 0, .last = count}, segments);
  spans.pop_back();
  return Checkpointed(plan(layers, spans, options));
}

Checkpointed Checkpointed::every(int k, const Layers& layers, const CheckpointOptions& options) {
  if (k < 1)
    throw UsageError(text("cannot recompute every ", k, "th layer"), {.hint = "Give 1 or more."});
  std::vector<Span> spans;
  for (int i = k; i <= static_cast<int>(layers.size()); i += k)
    spans.push_back({.first = i - 1, .last = i});
  return Checkpointed(plan(layers, spans, options));
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
      throw UsageError(text(words_for(graph, {.first = first, .last = last}),
                            " are part of another listed unit"),
                       {.hint = "List the nested model or its layers, not both."});
    }
    spans.push_back({.first = first, .last = last});
  }
  return Checkpointed(plan(layers, spans, options));
}

Values Checkpointed::run(const Values& inputs, const RunKey* key) const {
  return layers_->run_model(inputs, key);
}

Values Checkpointed::forward(const Values& inputs) const { return run(inputs, nullptr); }

Values Checkpointed::forward(const Values& inputs, const RunKey& key) const {
  return run(inputs, &key);
}

at::Tensor Checkpointed::forward(const at::Tensor& input) const {
  const Graph& graph = layers_->graph();
  if (graph.inputs != 1 || graph.outputs != 1) {
    throw UsageError(
        text("the model takes ", graph.inputs, " tensor(s) and returns ", graph.outputs),
        {.hint = "Call forward() with a std::vector of tensors."});
  }
  return run({input}, nullptr)[0];
}

std::vector<std::vector<std::string>> Checkpointed::recomputed() const {
  std::vector<std::vector<std::string>> units;
  for (const Span& span : layers_->recomputed()) {
    auto& names = units.emplace_back();
    for (int i = span.first; i < span.last; ++i)
      names.push_back(layers_->graph().layers[static_cast<std::size_t>(i)].name);
  }
  return units;
}

at::Tensor checkpoint_sequential(int segments, const Layers& layers, const at::Tensor& input,
                                 const CheckpointOptions& options) {
  return Checkpointed::in_segments(segments, layers, options).forward(input);
}

}  // namespace trestle::nn
