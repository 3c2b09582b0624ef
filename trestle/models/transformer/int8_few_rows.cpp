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
// Inputs that share a scale: a number that is far larger than the rest makes only its own block
// coarse. The sums of a block's products stay within 32 bits.
constexpr std::int64_t block = 64;

// Vectors as whole numbers of 16 bits: element k of row i stands for
// largest[i] * scales[i * blocks + k / block] * numbers[i * inputs + k].
struct RoundedVectors {
  std::vector<std::int16_t> numbers;
  std::vector<float> scales;    // of the blocks of each vector, at most 1 / 32767
  std::vector<double> largest;  // absolute value of a vector; NaN: one that is not finite
};

RoundedVectors round_vectors(const float* x, std::int64_t rows, std::int64_t inputs) {
  constexpr double most = std::numeric_limits<std::int16_t>::max();
  const std::int64_t blocks = (inputs + block - 1) / block;
  RoundedVectors rounded{.numbers = std::vector<std::int16_t>(rows * inputs),
                         .scales = std::vector<float>(rows * blocks),
                         .largest = std::vector<double>(rows)};
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const from = x + row * inputs;
    double whole = 0;
    for (std::int64_t k = 0; k < inputs; ++k) {
      const double size = std::fabs(from[k]);
      whole = std::isfinite(size) ? std::max(whole, size) : std::nan("");
      if (std::isnan(whole)) break;
    }
    rounded.largest[row] = whole;
    if (!(whole > 0)) continue;
    for (std::int64_t number = 0; number < blocks; ++number) {
      const std::int64_t first = number * block, end = std::min(first + block, inputs);
      float largest = 0;
      for (std::int64_t k = first; k < end; ++k) largest = std::max(largest, std::fabs(from[k]));
      if (largest == 0) continue;
      rounded.scales[row * blocks + number] = static_cast<float>(largest / whole / most);
      const double factor = most / largest;
      for (std::int64_t k = first; k < end; ++k) {
        const double value = from[k] * factor;
        rounded.numbers[row * inputs + k] =
            static_cast<std::int16_t>(value + (value < 0 ? -0.5 : 0.5));
      }
    }
  }
  return rounded;
}

// The sum over k of weight[k] * x[k] * scales[k / block].
using SumOfProducts = double (*)(const std::int8_t* weight, const std::int16_t* x,
                                 const float* scales, std::int64_t inputs);

double sum_of_products(const std::int8_t* weight, const std::int16_t* x, const float* scales,
                       std::int64_t inputs) {
  double sum = 0;
  for (std::int64_t first = 0; first < inputs; first += block) {
    std::int32_t products = 0;
    for (std::int64_t k = first; k < std::min(first + block, inputs); ++k)
      products += static_cast<std::int32_t>(weight[k]) * static_cast<std::int32_t>(x[k]);
    sum += static_cast<double>(products) * scales[first / block];
  }
  return sum;
}

#if defined(__x86_64__)
// The same with AVX2, which a compiler does not use by itself in a program for any x86-64. The
// eight parts of the sum are fp32.
__attribute__((target("avx2,fma"))) double sum_of_products_avx2(const std::int8_t* weight,
                                                                const std::int16_t* x,
                                                                const float* scales,
                                                                std::int64_t inputs) {
  constexpr std::int64_t width = 16;  // numbers of one instruction
  const auto products = [&](std::int64_t k) __attribute__((target("avx2,fma"))) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weight + k));
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + k));
    return _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), numbers);
  };
  __m256 sums = _mm256_setzero_ps();
  std::int64_t k = 0;
  for (; k + block <= inputs; k += block) {
    const __m256i left = _mm256_add_epi32(products(k), products(k + width));
    const __m256i right = _mm256_add_epi32(products(k + 2 * width), products(k + 3 * width));
    sums = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(left, right)),
                           _mm256_set1_ps(scales[k / block]), sums);
  }
  alignas(32) float parts[8];
  _mm256_store_ps(parts, sums);
  double sum = sum_of_products(weight + k, x + k, scales + k / block, inputs - k);
  for (const float part : parts) sum += part;
  return sum;
}
#endif

SumOfProducts for_this_processor() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return sum_of_products_avx2;
#endif
  return sum_of_products;
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
  const std::int64_t blocks = (inputs + block - 1) / block;
  at::parallel_for(0, outputs, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t output = begin; output < end; ++output)
      for (std::int64_t row = 0; row < rows; ++row) {
        const double found = sum(weights + output * inputs, vectors.numbers.data() + row * inputs,
                                 vectors.scales.data() + row * blocks, inputs);
        into[row * outputs + output] =
            static_cast<float>(found * vectors.largest[row] * factors[output]);
      }
  });
  return result.to(x.scalar_type());
}

}  // namespace trestle::models
