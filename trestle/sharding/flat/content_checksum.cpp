#include "trestle/sharding/flat/content_checksum.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace trestle::sharding {
namespace {

constexpr std::int64_t factor = 0x2545F4914F6CDD1D;

constexpr std::size_t block_words = 1024;
using Words = std::array<std::uint32_t, block_words>;

// Random keys, one for each word of a block, so that exchanged words change the checksum.
Words make_keys() {
  Words keys{};
  std::uint64_t state = factor;
  for (auto& key : keys) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    key = static_cast<std::uint32_t>(state >> 33U);
  }
  return keys;
}

// Sums of products of 32 by 32 bits (NH of Black et al., "UMAC", 1999), for which vector units have
// instructions: as fast as memory is read.
std::uint64_t checksum_of_block(const std::uint32_t* words, const Words& keys) {
  constexpr std::size_t half = block_words / 2;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < half; ++i) {
    const std::uint32_t a = words[i] + keys[i], b = words[i + half] + keys[i + half];
    sum += static_cast<std::uint64_t>(a) * b;
  }
  return sum;
}

at::Tensor checksum_on_host(const at::Tensor& flat) {
  constexpr std::size_t block_bytes = block_words * sizeof(std::uint32_t);
  const auto* const bytes = static_cast<const char*>(flat.const_data_ptr());
  const std::size_t size = flat.nbytes();
  const std::size_t blocks = (size + block_bytes - 1) / block_bytes;
  const Words keys = make_keys();
  std::vector<std::uint64_t> signs(blocks);
  at::parallel_for(0, static_cast<std::int64_t>(blocks), 64,
                   [&](std::int64_t begin, std::int64_t end) {
                     Words words;
                     for (auto block = static_cast<std::size_t>(begin);
                          block < static_cast<std::size_t>(end); ++block) {
                       const std::size_t at = block * block_bytes;
                       if (size - at < block_bytes) words.fill(0);
                       std::memcpy(words.data(), bytes + at, std::min(block_bytes, size - at));
                       signs[block] = checksum_of_block(words.data(), keys);
                     }
                   });
  std::uint64_t sign = 0;
  for (const std::uint64_t one : signs) sign = sign * static_cast<std::uint64_t>(factor) + one;
  return at::scalar_tensor(static_cast<std::int64_t>(sign), at::kLong);
}

// The same idea with a device's operators: the sum of the bits as integers, each times a key of its
// place.
at::Tensor checksum_on_device(const at::Tensor& flat) {
  constexpr at::ScalarType integer[] = {at::kChar, at::kShort, at::kInt, at::kLong};
  std::size_t bits = 0;
  while ((1U << bits) < flat.element_size()) ++bits;
  const at::Tensor numbers = flat.view(integer[bits]);
  constexpr std::int64_t most = 1 << 16;
  const std::int64_t first = std::min(most, numbers.numel());
  at::Tensor places = at::arange(1, first + 1, flat.options().dtype(at::kLong)).mul_(factor);
  places = places.bitwise_xor(places.bitwise_right_shift(29)).mul_(factor).bitwise_or_(1);
  at::Tensor sum = at::zeros({}, places.options());
  for (std::int64_t begin = 0; begin < numbers.numel(); begin += most) {
    const std::int64_t count = std::min(most, numbers.numel() - begin);
    const at::Tensor part = numbers.narrow(0, begin, count).to(at::kLong);
    sum.mul_(factor).add_(part.mul(places.narrow(0, 0, count)).sum());
  }
  return sum;
}

}  // namespace

at::Tensor content_checksum(const at::Tensor& flat) {
  const at::NoGradGuard no_grad;
  const at::Tensor real = (flat.is_complex() ? at::view_as_real(flat) : flat).view({-1});
  return real.is_cpu() ? checksum_on_host(real) : checksum_on_device(real);
}

}  // namespace trestle::sharding
