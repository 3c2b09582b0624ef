#include "trestle/models/transformer/adapters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>

#include <string>

#include "trestle/models/transformer/projection.h"
#include "trestle/models/transformer/public_weights.h"

namespace trestle::models {

NamedTensors adapter_views(const TransformerConfig& config, const NamedTensors& ours) {
  const std::string before = config.style == TransformerConfig::Style::Gpt2
                                 ? "base_model.model.transformer."
                                 : "base_model.model.";
  NamedTensors views;
  for (const auto& [name, tensor] : ours) {
    const auto marker = name.rfind(".lora");
    if (marker == std::string::npos) continue;
    const std::string projection = name.substr(0, marker);
    std::string part = name.substr(marker + 5);  // "_q.a", or ".a" for all rows
    const std::string leaf = part.ends_with(".a") ? ".lora_A.weight" : ".lora_B.weight";
    part.resize(part.size() - 2);
    if (!part.empty()) part.erase(0, 1);
    views.emplace_back(before + public_module(config, projection, part) + leaf, tensor.detach());
  }
  return views;
}

std::int64_t merge_adapters(const nn::Layers& model) {
  const at::NoGradGuard no_grad;
  std::int64_t count = 0;
  for (const nn::Layer& layer : model.graph().layers) {
    if (!layer.module) continue;
    for (const auto& module : layer.module->modules()) {
      const auto projection = std::dynamic_pointer_cast<ProjectionImpl>(module);
      if (!projection) continue;
      for (ProjectionImpl::Adapter& adapter : projection->adapters) {
        at::Tensor rows = projection->weight.narrow(0, adapter.first, adapter.rows);
        rows += (at::matmul(adapter.added->b, adapter.added->a) * adapter.added->scale)
                    .to(rows.scalar_type());
        adapter.added->b.zero_();
        ++count;
      }
    }
  }
  return count;
}

}  // namespace trestle::models
