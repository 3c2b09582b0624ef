#include "trestle/models/transformer/mlp.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include <string>
#include <utility>
#include <vector>

#include "trestle/nn/tanh_gelu.h"

namespace trestle::models {

namespace {

at::Tensor activate(const at::Tensor& x, TransformerConfig::Activation activation) {
  using Activation = TransformerConfig::Activation;
  switch (activation) {
    case Activation::GeluTanh:
      return nn::tanh_gelu(x);
    case Activation::Gelu:
      return at::gelu(x);
    case Activation::Silu:
      return at::silu(x);
    case Activation::Relu:
      return at::relu(x);
  }
  return x;
}

}  // namespace

MlpImpl::MlpImpl(const TransformerConfig& given, const LowRankOptions& adapters, const Drawn& drawn,
                 double down_deviation, const TensorSplit& tensor)
    : config(given) {
  const bool gated = config.style == TransformerConfig::Style::Llama;
  const std::string name = gated ? "gate_up" : "up";
  const auto make = [&](const std::string& as, std::int64_t inputs,
                        std::vector<ProjectionPart> parts, const char* target, double deviation,
                        ProjectionSplit split) {
    const ProjectionOptions options{.inputs = inputs,
                                    .parts = std::move(parts),
                                    .target = target,
                                    .bias = config.mlp_bias ? Bias::Added : Bias::None,
                                    .adapters = adapters,
                                    .split = split,
                                    .tensor = tensor.of(drawn.module + "." + as)};
    return register_module(as, Projection(options, drawn.of(as), deviation));
  };
  std::vector<ProjectionPart> parts = {{"up", config.mlp}};
  if (gated) parts = {{"gate", config.mlp, 1, "gate_proj"}, {"up", config.mlp, 1, "up_proj"}};
  up = make(name, config.width, std::move(parts), gated ? "" : "c_fc", config.initial_deviation,
            ProjectionSplit::Columns);
  down = make("down", config.mlp, {{"down", config.width}}, gated ? "down_proj" : "c_proj",
              down_deviation, ProjectionSplit::Rows);
}

at::Tensor MlpImpl::forward(const at::Tensor& x, std::int64_t tokens) {
  const at::Tensor rows = up->forward(x, tokens);
  if (config.style == TransformerConfig::Style::Gpt2)
    return down->forward(activate(rows, config.activation), tokens);
  const std::vector<at::Tensor> gate_and_up = rows.split(up->parts[0].size, -1);
  return down->forward(activate(gate_and_up[0], config.activation) * gate_and_up[1], tokens);
}

}  // namespace trestle::models
