#include "trestle/checkpoint/files/gguf/dequantise.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

// The compiler must not fuse a multiplication and an addition here: the results would differ from
// those of other programs.
namespace trestle::checkpoint {

namespace {

using Byte = std::uint8_t;

template <class T>
T read_as(const Byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float of_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1fU, fraction = half & 0x3ffU;
  // Exponents differ by 112. That of infinity and of NaN is the largest one.
  const std::uint32_t bits = (exponent == 31 ? 0xffU : exponent + 112) << 23 | fraction << 13;
  const std::uint32_t small = std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
  return std::bit_cast<float>(sign | (exponent == 0 ? small : bits));
}
float half_at(const Byte* from) { return of_half(read_as<std::uint16_t>(from)); }

float of_brain(std::uint16_t brain) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(brain) << 16);
}

void f16(const Byte* in, float* out) { *out = half_at(in); }
void bf16(const Byte* in, float* out) { *out = of_brain(read_as<std::uint16_t>(in)); }

// In all types of 32: the low half of byte i is element i, the high half is element 16 + i.
void q8_0(const Byte* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 32; ++i)
    out[i] = static_cast<float>(static_cast<std::int8_t>(in[2 + i])) * scale;
}

void q4_0(const Byte* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>((in[2 + i] & 0xf) - 8);
    out[16 + i] = scale * static_cast<float>((in[2 + i] >> 4) - 8);
  }
}

void q4_1(const Byte* in, float* out) {
  const float scale = half_at(in), least = half_at(in + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(in[4 + i] & 0xf) + least;
    out[16 + i] = scale * static_cast<float>(in[4 + i] >> 4) + least;
  }
}

// Bit i of 32 is the fifth bit of element i.
void q5_0(const Byte* in, float* out) {
  const float scale = half_at(in);
  const auto fifth = read_as<std::uint32_t>(in + 2);
  for (int i = 0; i < 16; ++i) {
    const int low = (in[6 + i] & 0xf) | static_cast<int>(fifth >> i & 1U) << 4;
    const int high = in[6 + i] >> 4 | static_cast<int>(fifth >> (16 + i) & 1U) << 4;
    out[i] = scale * static_cast<float>(low - 16);
    out[16 + i] = scale * static_cast<float>(high - 16);
  }
}

void q5_1(const Byte* in, float* out) {
  const float scale = half_at(in), least = half_at(in + 2);
  const auto fifth = read_as<std::uint32_t>(in + 4);
  for (int i = 0; i < 16; ++i) {
    const int low = (in[8 + i] & 0xf) | static_cast<int>(fifth >> i & 1U) << 4;
    const int high = in[8 + i] >> 4 | static_cast<int>(fifth >> (16 + i) & 1U) << 4;
    out[i] = scale * static_cast<float>(low) + least;
    out[16 + i] = scale * static_cast<float>(high) + least;
  }
}

// The scale and the minimum of group `group` of 8, of 6 bits each, packed into 12 bytes.
struct GroupScale {
  int scale = 0;
  int least = 0;
};
GroupScale group_scale(const Byte* packed, int group) {
  if (group < 4) return {packed[group] & 0x3f, packed[4 + group] & 0x3f};
  const int i = group - 4;
  return {(packed[8 + i] & 0xf) | (packed[i] >> 6) << 4, packed[8 + i] >> 4 | (packed[4 + i] >> 6)
                                                                                  << 4};
}

// Two groups of 32 elements share 32 bytes: the first has the low halves.
void q4_k(const Byte* in, float* out) {
  const float scale = half_at(in), least = half_at(in + 2);
  for (int group = 0; group < 8; ++group) {
    const GroupScale of = group_scale(in + 4, group);
    const float by = scale * static_cast<float>(of.scale),
                less = least * static_cast<float>(of.least);
    const Byte* halves = in + 16 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i)
      out[32 * group + i] = by * static_cast<float>(halves[i] >> shift & 0xf) - less;
  }
}

// Bit `group` of byte i of 32 is the fifth bit of element i of the group.
void q5_k(const Byte* in, float* out) {
  const float scale = half_at(in), least = half_at(in + 2);
  const Byte* fifth = in + 16;
  for (int group = 0; group < 8; ++group) {
    const GroupScale of = group_scale(in + 4, group);
    const float by = scale * static_cast<float>(of.scale),
                less = least * static_cast<float>(of.least);
    const Byte* halves = in + 48 + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int value = (halves[i] >> shift & 0xf) | (fifth[i] >> group & 1) << 4;
      out[32 * group + i] = by * static_cast<float>(value) - less;
    }
  }
}

// Two halves of 128 elements, each in four groups of 32: 64 bytes of low four bits, 32 bytes with
// two high bits of each group, and a signed scale for every 16 elements.
void q6_k(const Byte* in, float* out) {
  const float scale = half_at(in + 208);
  for (int half = 0; half < 2; ++half) {
    const Byte* high = in + 128 + 32 * half;
    for (int group = 0; group < 4; ++group) {
      const Byte* low = in + 64 * half + group % 2 * 32;
      const int low_shift = group / 2 * 4, high_shift = 2 * group;
      float* to = out + 128 * half + 32 * group;
      for (int part = 0; part < 2; ++part) {
        const auto of = static_cast<std::int8_t>(in[192 + 8 * half + 2 * group + part]);
        const float by = scale * static_cast<float>(of);
        for (int i = 16 * part; i < 16 * part + 16; ++i) {
          const int value = (low[i] >> low_shift & 0xf) | (high[i] >> high_shift & 3) << 4;
          to[i] = by * static_cast<float>(value - 32);
        }
      }
    }
  }
}

template <class Convert>
void each_block(const GgufBlock& block, std::string_view bytes, float* out, Convert convert) {
  const auto* in = reinterpret_cast<const Byte*>(bytes.data());
  const std::size_t blocks = bytes.size() / block.bytes;
  for (std::size_t i = 0; i < blocks; ++i) {
    convert(in, out);
    in += block.bytes;
    out += block.elements;
  }
}

}  // namespace

void dequantise(GgufType type, std::string_view bytes, float* out) {
  const GgufBlock block = block_of(type);
  if (block.bytes == 0 || bytes.size() % block.bytes != 0)
    throw UsageError(text(bytes.size(), " bytes are not whole blocks of ",
                          gguf_type_name(static_cast<std::uint32_t>(type))));
  const auto convert = [&](auto one) { each_block(block, bytes, out, one); };
  switch (type) {
    case GgufType::F32:
      if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
      return;
    case GgufType::F16:
      return convert([](const Byte* in, float* to) { f16(in, to); });
    case GgufType::BF16:
      return convert([](const Byte* in, float* to) { bf16(in, to); });
    case GgufType::Q8_0:
      return convert([](const Byte* in, float* to) { q8_0(in, to); });
    case GgufType::Q4_0:
      return convert([](const Byte* in, float* to) { q4_0(in, to); });
    case GgufType::Q4_1:
      return convert([](const Byte* in, float* to) { q4_1(in, to); });
    case GgufType::Q5_0:
      return convert([](const Byte* in, float* to) { q5_0(in, to); });
    case GgufType::Q5_1:
      return convert([](const Byte* in, float* to) { q5_1(in, to); });
    case GgufType::Q4_K:
      return convert([](const Byte* in, float* to) { q4_k(in, to); });
    case GgufType::Q5_K:
      return convert([](const Byte* in, float* to) { q5_k(in, to); });
    case GgufType::Q6_K:
      return convert([](const Byte* in, float* to) { q6_k(in, to); });
  }
}

}  // namespace trestle::checkpoint
