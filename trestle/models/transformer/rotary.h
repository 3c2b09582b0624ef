#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trestle/models/transformer/config.h"

// Rotary positions (Su et al. 2021), "rotate half": element i of a head's first half and element i
// of its second half are one pair, as in Hugging Face's Llama files.
namespace trestle::models {

// The angle per position of each pair, in radians: theta^(-2i / head_size), after the config's
// scaling. Llama 3's scaling divides low frequencies by `factor` and blends between
// original_context / low_frequency_factor and original_context / high_frequency_factor
// wavelengths; linear scaling divides all of them.
std::vector<double> rotary_frequencies(const TransformerConfig& config);

// Cosines and sines in fp32 for the positions [N, T] or [T]: each [N or 1, T, 1, head_size / 2].
struct Rotation {
  at::Tensor cosine;
  at::Tensor sine;
};
Rotation rotation_at(const at::Tensor& positions, const at::Tensor& frequencies);

// Rotates queries or keys [N, T, heads, head_size]. Computes in fp32 and returns x's dtype.
at::Tensor rotate(const at::Tensor& x, const Rotation& rotation);

}  // namespace trestle::models
