#include "trestle/models/transformer/product.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>

namespace trestle::models {

namespace {

bool has_bf16_instructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return true;
#endif
}

// A few vectors are limited by the reading of the weight, which fp32 would not change.
bool faster_in_fp32(const at::Tensor& x, const at::Tensor& weight) {
  constexpr std::int64_t few_vectors = 16;
  return c10::InferenceMode::is_enabled() && weight.is_cpu() &&
         weight.scalar_type() == at::kBFloat16 && x.numel() > few_vectors * x.size(-1) &&
         !has_bf16_instructions();
}

}  // namespace

bool casts(const at::Tensor& x, const at::Tensor& weight) {
  return weight.scalar_type() != x.scalar_type() &&
         !at::autocast::is_autocast_enabled(x.device().type());
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType type = weight.scalar_type();
  if (faster_in_fp32(x, weight)) {
    const at::Tensor exact_bias = bias.defined() ? bias.to(at::kFloat) : bias;
    return at::linear(x.to(at::kFloat), weight.to(at::kFloat), exact_bias)
        .to(type)
        .to(x.scalar_type());
  }
  if (!casts(x, weight)) return at::linear(x, weight, bias);
  return at::linear(x.to(type), weight, bias).to(x.scalar_type());
}

}  // namespace trestle::models
