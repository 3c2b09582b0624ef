#include "trestle/nn/tanh_gelu_kernel.h"

#include <cmath>
#include <cstring>

#include "trestle/base/target_clones.h"

// Compiled without torch and always optimised.
namespace trestle::nn {

namespace {

// (1 + tanh(z)) / 2 is the logistic function of 2 z. These are the factors of 2 z.
constexpr float twice_root = 1.5957691216057308F;  // 2 sqrt(2 / pi)
constexpr float cubic = 0.044715F;

// exp(-|z|), to 1e-7 of it: 2^n times a polynomial in the rest, as in Cephes' expf.
inline float exp_of_minus(float z) {
  constexpr float log2_of_e = 1.44269504088896341F;
  // ln 2 in two parts: n times the first one is exact.
  constexpr float ln2_high = 0.693359375F, ln2_low = -2.12194440e-4F;
  constexpr float least = -87.0F;          // 2^n is then still a normal number
  constexpr float to_whole = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  constexpr std::int32_t exponent_of_one = 127, mantissa_bits = 23;
  const float exact = -std::fabs(z);
  // NaN becomes `least` too, because it has no whole number. tanh_gelu() multiplies by x itself.
  const float x = exact > least ? exact : least;
  const float n = (x * log2_of_e + to_whole) - to_whole;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const std::int32_t bits = (static_cast<std::int32_t>(n) + exponent_of_one) << mantissa_bits;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

}  // namespace

TRESTLE_CLONES void tanh_gelu(const float* __restrict x, float* __restrict y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float v = x[i];
    const float z = twice_root * (v + cubic * v * v * v);
    const float e = exp_of_minus(z);
    y[i] = v * ((z >= 0 ? 1.0F : e) / (1.0F + e));
  }
}

TRESTLE_CLONES void tanh_gelu_backward(const float* __restrict x, const float* __restrict gradient,
                                       float* __restrict into, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float v = x[i];
    const float z = twice_root * (v + cubic * v * v * v);
    const float e = exp_of_minus(z);
    const float part = 1.0F / (1.0F + e);
    const float logistic = (z >= 0 ? 1.0F : e) * part;
    const float slope = e * part * part * (twice_root * (1.0F + 3 * cubic * v * v));
    into[i] = gradient[i] * (logistic + v * slope);
  }
}

}  // namespace trestle::nn
