#include "trestle/pipeline/find_nonfinite.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <map>
#include <optional>

#include "trestle/base/text.h"
#include "trestle/device/transfer.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/run_key.h"
#include "trestle/pipeline/micro_batch.h"

namespace trestle {

namespace {

using nn::ValueId;

bool finite(const at::Tensor& tensor) {
  if (!tensor.defined() || !(tensor.is_floating_point() || tensor.is_complex())) return true;
  return tensor.numel() == 0 || at::isfinite(tensor).all().item<bool>();
}

std::vector<int> stage_of_layers(const Pipeline& pipeline) {
  std::vector<int> stages;
  for (int stage = 0; stage < pipeline.stage_count(); ++stage)
    stages.insert(stages.end(),
                  static_cast<std::size_t>(pipeline.balance()[static_cast<std::size_t>(stage)]),
                  stage);
  return stages;
}

std::string place(const nn::Layer& layer, int stage) {
  return text("layer '", layer.name, "' in stage ", stage);
}

class Search {
 public:
  explicit Search(Pipeline& pipeline)
      : pipeline_(pipeline), graph_(pipeline.model().graph()), stages_(stage_of_layers(pipeline)) {}

  std::optional<std::string> parameters() const {
    for (std::size_t i = 0; i < graph_.layers.size(); ++i) {
      const nn::Layer& layer = graph_.layers[i];
      if (!layer.module) continue;
      for (const auto& item : layer.module->named_parameters())
        if (!finite(item.value()))
          return text("parameter '", layer.name, ".", item.key(), "' in stage ", stages_[i],
                      " has values that are infinite or NaN");
    }
    return std::nullopt;
  }

  std::optional<std::string> gradients() const {
    for (std::size_t i = graph_.layers.size(); i-- > 0;) {
      const nn::Layer& layer = graph_.layers[i];
      if (!layer.module) continue;
      for (const auto& item : layer.module->named_parameters())
        if (!finite(item.value().grad()))
          return text("the gradient of '", layer.name, ".", item.key(), "' in stage ", stages_[i],
                      " has values that are infinite or NaN");
    }
    return std::nullopt;
  }

  std::optional<std::string> outputs(const nn::Values& micro_batch, const nn::RunKey& key) {
    std::map<ValueId, at::Tensor> values;
    for (std::size_t i = 0; i < micro_batch.size(); ++i)
      values[{nn::model_input, static_cast<int>(i)}] = micro_batch[i];
    for (std::size_t i = 0; i < graph_.layers.size(); ++i) {
      const int layer = static_cast<int>(i);
      const nn::BufferKeeper keep_buffers(graph_.layers[i].buffers());
      const nn::Values results = nn::run_layer(graph_, layer, arguments(layer, values), &key);
      for (std::size_t r = 0; r < results.size(); ++r) {
        if (!finite(results[r]))
          return text("the output of ", place(graph_.layers[i], stages_[i]),
                      " is the first that has values that are infinite or NaN");
        values[{layer, static_cast<int>(r)}] = results[r];
      }
    }
    return std::nullopt;
  }

 private:
  // Copies: a layer may work in place.
  nn::Values arguments(int layer, const std::map<ValueId, at::Tensor>& values) const {
    const Device& device = pipeline_.device(stages_[static_cast<std::size_t>(layer)]);
    nn::Values result;
    for (const nn::Edge& edge : graph_.edges) {
      if (edge.to_layer != layer) continue;
      const auto argument = static_cast<std::size_t>(edge.to_argument);
      if (result.size() <= argument) result.resize(argument + 1);
      const auto value = values.find({edge.from_layer, edge.from_output});
      if (value != values.end() && value->second.defined())
        result[argument] = to_device(value->second, device.torch).clone();
    }
    return result;
  }

  Pipeline& pipeline_;
  const nn::Graph graph_;
  const std::vector<int> stages_;
};

}  // namespace

std::string find_nonfinite(const nn::Values& inputs, Pipeline& pipeline,
                           std::int64_t first_micro_batch) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!finite(inputs[i])) return text("input ", i, " has values that are infinite or NaN");
  Search search(pipeline);
  if (auto found = search.parameters()) return *found;
  const PipelineOptions& options = pipeline.options();
  const precision::Autocast autocast(options.precision);
  const auto pieces = pipeline::split(pipeline::in_memory_format(inputs, options.memory_format),
                                      options.micro_batches, options.split_size);
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const nn::RunKey key{.seed = options.seed,
                         .step = pipeline.step_number() - 1,
                         .micro_batch = first_micro_batch + static_cast<std::int64_t>(m)};
    if (auto found = search.outputs(pieces[m], key)) return text(*found, " (micro-batch ", m, ")");
  }
  return "every layer's output is finite, so it is the loss itself";
}

std::string find_nonfinite_gradient(Pipeline& pipeline) {
  const at::NoGradGuard no_grad;
  return Search(pipeline).gradients().value_or("");
}

}  // namespace trestle
