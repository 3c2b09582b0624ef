#include "trestle/models/transformer/int8_few_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "trestle/device/host_memory.h"

namespace trestle::models {

namespace {

constexpr std::int64_t most_rows = 16;
constexpr std::int64_t lanes = 8;  // sums of 32 bits in a register of AVX2

// Vectors as whole numbers: element k of row i stands for scales[i] * numbers[i * inputs + k].
struct RoundedVectors {
  std::vector<std::int16_t> numbers;
  std::vector<float> scales;
};

// The largest absolute value of a vector's numbers: each of the 8 sums of `inputs` products with
// int8 numbers stays within 32 bits.
std::int64_t largest_number(std::int64_t inputs) {
  constexpr std::int64_t largest_sum = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t largest_weight = 128;
  const std::int64_t products = (inputs + lanes - 1) / lanes + lanes;
  return std::clamp<std::int64_t>(largest_sum / (largest_weight * products), 1,
                                  std::numeric_limits<std::int16_t>::max());
}

RoundedVectors round_vectors(const float* x, std::int64_t rows, std::int64_t inputs) {
  RoundedVectors rounded{.numbers = std::vector<std::int16_t>(rows * inputs),
                         .scales = std::vector<float>(rows)};
  const auto most = static_cast<float>(largest_number(inputs));
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const from = x + row * inputs;
    std::int16_t* const to = rounded.numbers.data() + row * inputs;
    float largest = 0;
    bool finite = true;
    for (std::int64_t k = 0; k < inputs; ++k) {
      largest = std::max(largest, std::fabs(from[k]));
      finite = finite && std::isfinite(from[k]);
    }
    rounded.scales[row] = finite ? largest / most : std::numeric_limits<float>::quiet_NaN();
    const float factor = most / largest;
    if (!finite || !std::isfinite(factor)) continue;  // zeros, or so small that they count as zeros
    for (std::int64_t k = 0; k < inputs; ++k) {
      const float number = from[k] * factor;
      to[k] = static_cast<std::int16_t>(number + (number < 0 ? -0.5F : 0.5F));
    }
  }
  return rounded;
}

using SumOfProducts = std::int64_t (*)(const std::int8_t* weight, const std::int16_t* x,
                                       std::int64_t inputs);

std::int64_t sum_of_products(const std::int8_t* weight, const std::int16_t* x,
                             std::int64_t inputs) {
  std::int64_t sum = 0;
  for (std::int64_t k = 0; k < inputs; ++k)
    sum += static_cast<std::int32_t>(weight[k]) * static_cast<std::int32_t>(x[k]);
  return sum;
}

#if defined(__x86_64__)
// The same with AVX2, which a compiler does not use by itself in a program for any x86-64.
__attribute__((target("avx2"))) std::int64_t sum_of_products_avx2(const std::int8_t* weight,
                                                                  const std::int16_t* x,
                                                                  std::int64_t inputs) {
  constexpr std::int64_t width = 16;  // numbers of one instruction
  const auto products = [&](std::int64_t k) __attribute__((target("avx2"))) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weight + k));
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + k));
    return _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), numbers);
  };
  __m256i even = _mm256_setzero_si256(), odd = even;  // two sums that do not wait for each other
  std::int64_t k = 0;
  for (; k + 2 * width <= inputs; k += 2 * width) {
    even = _mm256_add_epi32(even, products(k));
    odd = _mm256_add_epi32(odd, products(k + width));
  }
  if (k + width <= inputs) {
    even = _mm256_add_epi32(even, products(k));
    k += width;
  }
  alignas(32) std::int32_t parts[lanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), _mm256_add_epi32(even, odd));
  std::int64_t sum = sum_of_products(weight + k, x + k, inputs - k);
  for (const std::int32_t part : parts) sum += part;
  return sum;
}
#endif

SumOfProducts for_this_processor() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return sum_of_products_avx2;
#endif
  return sum_of_products;
}

bool in_host_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() || tensor.device().type() == at::kPrivateUse1;  // a virtual device
}

}  // namespace

bool has_few_rows(const at::Tensor& x, const Int8Rows& weight) {
  const bool known = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
  return known && in_host_memory(x) && x.device() == weight.rows.device() && x.numel() > 0 &&
         x.numel() <= most_rows * x.size(-1) && x.size(-1) == weight.rows.size(1) &&
         weight.rows.is_contiguous();
}

at::Tensor few_rows_product(const at::Tensor& x, const Int8Rows& weight) {
  static const SumOfProducts sum = for_this_processor();
  const at::Tensor exact = x.detach().to(at::kFloat).contiguous();
  const at::Tensor scales = weight.scales.detach().to(at::kFloat).contiguous();
  const std::int64_t inputs = weight.rows.size(1), outputs = weight.rows.size(0);
  const std::int64_t rows = exact.numel() / inputs;
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = outputs;
  at::Tensor result = at::empty(sizes, exact.options());
  const at::Tensor host_weights = host_view(weight.rows.detach()), host_scales = host_view(scales),
                   host_x = host_view(exact), host_result = host_view(result);
  const auto* const weights = host_weights.const_data_ptr<std::int8_t>();
  const auto* const factors = host_scales.const_data_ptr<float>();
  auto* const into = host_result.mutable_data_ptr<float>();
  const RoundedVectors vectors = round_vectors(host_x.const_data_ptr<float>(), rows, inputs);
  constexpr std::int64_t least_products = 1 << 15;  // of a thread: fewer do not repay its start
  const std::int64_t grain = std::max<std::int64_t>(1, least_products / (inputs * rows));
  at::parallel_for(0, outputs, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t output = begin; output < end; ++output)
      for (std::int64_t row = 0; row < rows; ++row)
        into[row * outputs + output] =
            static_cast<float>(
                sum(weights + output * inputs, vectors.numbers.data() + row * inputs, inputs)) *
            vectors.scales[row] * factors[output];
  });
  return result.to(x.scalar_type());
}

}  // namespace trestle::models
