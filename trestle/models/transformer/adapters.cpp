#include "trestle/models/transformer/adapters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "trestle/models/transformer/projection.h"

namespace trestle::models {

NamedTensors adapters_of(const NamedTensors& ours) {
  NamedTensors found;
  for (const auto& one : ours)
    if (one.first.find(".lora") != std::string::npos) found.push_back(one);
  return found;
}

namespace {

// PEFT's name for "blocks.0.attention.qkv.lora_q.a".
std::string peft_name(const TransformerConfig& config, const std::string& name) {
  const std::string before = config.style == TransformerConfig::Style::Gpt2
                                 ? "base_model.model.transformer."
                                 : "base_model.model.";
  const auto marker = name.rfind(".lora");
  const std::string projection = name.substr(0, marker);
  std::string part = name.substr(marker + 5);  // "_q.a", or ".a" for all rows
  const std::string leaf = part.ends_with(".a") ? ".lora_A.weight" : ".lora_B.weight";
  part.resize(part.size() - 2);
  if (!part.empty()) part.erase(0, 1);
  return before + public_module(config, projection, part) + leaf;
}

}  // namespace

std::vector<PublicBox> adapter_boxes(const TransformerConfig& config, const NamedTensors& ours,
                                     const nn::ParameterSlices& slices) {
  std::vector<PublicBox> boxes;
  for (const auto& [name, tensor] : adapters_of(ours)) {
    const std::string in_file = peft_name(config, name);
    const auto found = slices.find(name);
    if (found == slices.end()) {
      boxes.push_back({.name = in_file, .view = tensor.detach()});
      continue;
    }
    const nn::ParameterSlice& slice = found->second;
    std::int64_t own = 0;  // of the range, in this rank's tensor
    for (const nn::IndexRange& range : slice.ranges) {
      std::vector<std::int64_t> offset(slice.whole.size(), 0);
      offset[static_cast<std::size_t>(slice.dimension)] = range.begin;
      boxes.push_back({.name = in_file,
                       .view = tensor.detach().narrow(slice.dimension, own, range.size),
                       .offset = std::move(offset),
                       .whole = slice.whole});
      own += range.size;
    }
  }
  return boxes;
}

NamedTensors adapter_views(const TransformerConfig& config, const NamedTensors& ours) {
  NamedTensors views;
  for (PublicBox& box : adapter_boxes(config, ours, {}))
    views.emplace_back(std::move(box.name), std::move(box.view));
  return views;
}

namespace {

std::vector<std::shared_ptr<ProjectionImpl>> projections_of(const nn::Layers& model) {
  std::vector<std::shared_ptr<ProjectionImpl>> found;
  for (const nn::Layer& layer : model.graph().layers) {
    if (!layer.module) continue;
    for (const auto& module : layer.module->modules())
      if (auto projection = std::dynamic_pointer_cast<ProjectionImpl>(module))
        found.push_back(std::move(projection));
  }
  return found;
}

}  // namespace

void dequantise(const nn::Layers& model) {
  for (const auto& projection : projections_of(model)) projection->dequantise();
}

std::int64_t merge_adapters(const nn::Layers& model) {
  const at::NoGradGuard no_grad;
  std::int64_t count = 0;
  for (const auto& projection : projections_of(model)) {
    projection->dequantise();
    at::Tensor& weight = projection->weight;
    // A sum in bf16 would lose what changes a weight by less than 1/512 of it.
    if (!projection->adapters.empty() && weight.element_size() < 4)
      weight.set_data(weight.to(at::kFloat));
    for (ProjectionImpl::Adapter& adapter : projection->adapters) {
      const LowRankImpl& added = *adapter.added;
      const at::Tensor product =
          at::matmul(added.b.to(weight.scalar_type()), added.a.to(weight.scalar_type()));
      weight.narrow(0, adapter.first, adapter.rows) += product * added.scale;
      adapter.added->b.zero_();
      ++count;
    }
  }
  return count;
}

}  // namespace trestle::models
