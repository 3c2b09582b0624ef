#include "trestle/checkpoint/files/gguf/gguf_type.h"

#include <array>
#include <vector>

#include "trestle/base/text.h"

namespace trestle::checkpoint {

namespace {

struct TypeEntry {
  GgufType type;
  GgufBlock block;
};

// Scales are fp16. A block of 256 has 12 bytes of 6-bit scales, or 16 of 8 bits (Q6_K).
constexpr std::array type_table = {
    TypeEntry{GgufType::F32, {"F32", 1, 4}},
    TypeEntry{GgufType::F16, {"F16", 1, 2}},
    TypeEntry{GgufType::BF16, {"BF16", 1, 2}},
    TypeEntry{GgufType::Q8_0, {"Q8_0", 32, 2 + 32}},
    TypeEntry{GgufType::Q4_0, {"Q4_0", 32, 2 + 16}},
    TypeEntry{GgufType::Q4_1, {"Q4_1", 32, 2 + 2 + 16}},
    TypeEntry{GgufType::Q5_0, {"Q5_0", 32, 2 + 4 + 16}},
    TypeEntry{GgufType::Q5_1, {"Q5_1", 32, 2 + 2 + 4 + 16}},
    TypeEntry{GgufType::Q4_K, {"Q4_K", 256, 2 + 2 + 12 + 128}},
    TypeEntry{GgufType::Q5_K, {"Q5_K", 256, 2 + 2 + 12 + 32 + 128}},
    TypeEntry{GgufType::Q6_K, {"Q6_K", 256, 128 + 64 + 16 + 2}},
};

// Types that a message should name, although they cannot be read.
struct OtherType {
  std::uint32_t number;
  std::string_view name;
};
constexpr std::array other_types = {
    OtherType{9, "Q8_1"},     OtherType{10, "Q2_K"},    OtherType{11, "Q3_K"},
    OtherType{15, "Q8_K"},    OtherType{16, "IQ2_XXS"}, OtherType{17, "IQ2_XS"},
    OtherType{18, "IQ3_XXS"}, OtherType{19, "IQ1_S"},   OtherType{20, "IQ4_NL"},
    OtherType{21, "IQ3_S"},   OtherType{22, "IQ2_S"},   OtherType{23, "IQ4_XS"},
    OtherType{24, "I8"},      OtherType{25, "I16"},     OtherType{26, "I32"},
    OtherType{27, "I64"},     OtherType{28, "F64"},     OtherType{29, "IQ1_M"},
    OtherType{34, "TQ1_0"},   OtherType{35, "TQ2_0"},   OtherType{39, "MXFP4"}};

}  // namespace

GgufBlock block_of(GgufType type) {
  for (const TypeEntry& entry : type_table)
    if (entry.type == type) return entry.block;
  return {};
}

std::string gguf_type_name(std::uint32_t number) {
  if (const GgufBlock block = block_of(GgufType{number}); block.elements > 0)
    return std::string(block.name);
  for (const OtherType& entry : other_types)
    if (entry.number == number) return std::string(entry.name);
  return text("type ", number);
}

std::string known_gguf_types() {
  std::vector<std::string_view> names;
  for (const TypeEntry& entry : type_table) names.push_back(entry.block.name);
  return join(names, ", ");
}

}  // namespace trestle::checkpoint
