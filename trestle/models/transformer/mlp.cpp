#include "trestle/models/transformer/mlp.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

namespace trestle::models {

namespace {

at::Tensor activate(const at::Tensor& x, TransformerConfig::Activation activation) {
  using Activation = TransformerConfig::Activation;
  switch (activation) {
    case Activation::GeluTanh:
      return at::gelu(x, "tanh");
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

MlpImpl::MlpImpl(const TransformerConfig& given, const Drawn& drawn, double down_deviation)
    : config(given) {
  const bool gated = config.style == TransformerConfig::Style::Llama;
  const std::string name = gated ? "gate_up" : "up";
  const Bias bias = config.mlp_bias ? Bias::Added : Bias::None;
  ProjectionOptions options{.inputs = config.width, .parts = {{"up", config.mlp}}, .bias = bias};
  if (gated) options.parts = {{"gate", config.mlp}, {"up", config.mlp}};
  up = register_module(name, Projection(options, drawn.of(name), config.initial_deviation));
  down = register_module("down", Projection(ProjectionOptions{.inputs = config.mlp,
                                                              .parts = {{"down", config.width}},
                                                              .bias = bias},
                                            drawn.of("down"), down_deviation));
}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  const at::Tensor rows = up->forward(x);
  if (config.style == TransformerConfig::Style::Gpt2)
    return down->forward(activate(rows, config.activation));
  const at::Tensor gate = rows.narrow(-1, 0, config.mlp);
  return down->forward(activate(gate, config.activation) * rows.narrow(-1, config.mlp, config.mlp));
}

}  // namespace trestle::models
