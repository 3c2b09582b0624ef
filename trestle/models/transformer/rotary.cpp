#include "trestle/models/transformer/rotary.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/sin.h>

#include <cmath>
#include <numbers>

namespace trestle::models {

namespace {

// Llama 3's scaling of one frequency, as in Hugging Face's _compute_llama3_parameters().
double scaled_as_llama3(double frequency, const TransformerConfig::Rope& rope) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(rope.original_context);
  if (wavelength > context / rope.low_frequency_factor) return frequency / rope.factor;
  if (wavelength < context / rope.high_frequency_factor) return frequency;
  const double smooth = (context / wavelength - rope.low_frequency_factor) /
                        (rope.high_frequency_factor - rope.low_frequency_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rotary_frequencies(const TransformerConfig& config) {
  using Scaling = TransformerConfig::Rope::Scaling;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < config.head_size; i += 2) {
    const double share = static_cast<double>(i) / static_cast<double>(config.head_size);
    double frequency = std::pow(config.rope.theta, -share);
    if (config.rope.scaling == Scaling::Llama3)
      frequency = scaled_as_llama3(frequency, config.rope);
    if (config.rope.scaling == Scaling::Linear) frequency /= config.rope.factor;
    frequencies.push_back(frequency);
  }
  return frequencies;
}

Rotation rotation_at(const at::Tensor& positions, const at::Tensor& frequencies) {
  const at::Tensor rows = positions.dim() == 1 ? positions.unsqueeze(0) : positions;
  const at::Tensor angles = rows.to(at::kFloat).unsqueeze(-1) * frequencies;
  return {angles.cos().unsqueeze(2), angles.sin().unsqueeze(2)};
}

at::Tensor rotate(const at::Tensor& x, const Rotation& rotation) {
  const std::vector<at::Tensor> halves = x.split(x.size(-1) / 2, -1);
  const at::Tensor &first = halves[0], &second = halves[1];
  const at::Tensor& cosine = rotation.cosine;
  const at::Tensor& sine = rotation.sine;
  return at::cat({first * cosine - second * sine, second * cosine + first * sine}, -1)
      .to(x.scalar_type());
}

}  // namespace trestle::models
