#include "trestle/models/transformer/adapters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>

#include <string>

#include "trestle/models/transformer/projection.h"
#include "trestle/models/transformer/public_weights.h"

namespace trestle::models {

NamedTensors adapters_of(const NamedTensors& ours) {
  NamedTensors found;
  for (const auto& one : ours)
    if (one.first.find(".lora") != std::string::npos) found.push_back(one);
  return found;
}

NamedTensors adapter_views(const TransformerConfig& config, const NamedTensors& ours) {
  const std::string before = config.style == TransformerConfig::Style::Gpt2
                                 ? "base_model.model.transformer."
                                 : "base_model.model.";
  NamedTensors views;
  for (const auto& [name, tensor] : adapters_of(ours)) {
    const auto marker = name.rfind(".lora");
    const std::string projection = name.substr(0, marker);
    std::string part = name.substr(marker + 5);  // "_q.a", or ".a" for all rows
    const std::string leaf = part.ends_with(".a") ? ".lora_A.weight" : ".lora_B.weight";
    part.resize(part.size() - 2);
    if (!part.empty()) part.erase(0, 1);
    views.emplace_back(before + public_module(config, projection, part) + leaf, tensor.detach());
  }
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
