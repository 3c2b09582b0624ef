#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// The number formats of tensors in GGUF files. Torch-free.
namespace trestle::checkpoint {

// With the numbers that GGUF files store. Q8_0 and the following ones pack blocks of 32 or 256
// elements with one scale or more.
enum class GgufType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30,
};

// How a type stores its elements.
struct GgufBlock {
  std::string_view name;       // "Q4_0"; empty for a type that dequantise() does not have
  std::uint64_t elements = 0;  // of one block; a row has whole blocks
  std::uint64_t bytes = 0;     // of one block
};
GgufBlock block_of(GgufType type);

// "Q5_K", "IQ2_XS", "type 77": for types that are not in GgufType too.
std::string gguf_type_name(std::uint32_t number);

// "F32, F16, BF16, ...": the types that dequantise() has.
std::string known_gguf_types();

}  // namespace trestle::checkpoint
