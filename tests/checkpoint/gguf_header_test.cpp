#include "trestle/checkpoint/files/gguf/gguf_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/fuzz/fuzz.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/checkpoint/files/file_bytes.h"
#include "trestle/checkpoint/files/gguf/dequantise.h"

namespace trestle::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::filesystem::path gguf_types =
    std::filesystem::path(TRESTLE_SOURCE_DIR) / "tests/golden/gguf/types.gguf";

// Writes headers, right and wrong ones.
class HeaderBytes {
 public:
  explicit HeaderBytes(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    bytes_ = "GGUF";
    number(version, 4).number(tensors).number(keys);
  }
  HeaderBytes& number(std::uint64_t value, std::size_t bytes = 8) {
    for (std::size_t i = 0; i < bytes; ++i)
      bytes_ += static_cast<char>(i < 8 ? value >> (8 * i) & 0xff : 0);
    return *this;
  }
  HeaderBytes& word(std::string_view word) {
    number(word.size());
    bytes_ += word;
    return *this;
  }
  HeaderBytes& key(std::string_view name, std::uint32_t type) { return word(name).number(type, 4); }
  HeaderBytes& tensor(std::string_view name, const std::vector<std::uint64_t>& sizes, GgufType type,
                      std::uint64_t offset) {
    word(name).number(sizes.size(), 4);
    for (const std::uint64_t size : sizes) number(size);
    return number(static_cast<std::uint32_t>(type), 4).number(offset);
  }
  // The header, padded, and this number of bytes of tensors.
  std::string with_data(std::size_t bytes) const {
    std::string out = bytes_;
    out.resize((out.size() + 31) / 32 * 32 + bytes);
    return out;
  }

 private:
  std::string bytes_;
};

GgufHeader parse(const std::string& bytes) { return read_gguf_header(FileBytes("x.gguf", bytes)); }

std::string gguf_error(const std::string& bytes) {
  return support::message_of<FormatError>([&] { parse(bytes); });
}

TEST(GgufHeader, ReadsMetadataOfEveryKind) {
  const GgufHeader header = read_gguf_header(gguf_types);
  EXPECT_EQ(header.version, 3u);
  EXPECT_EQ(header.alignment, 32u);
  EXPECT_EQ(*header.find<std::string>("general.architecture"), "llama");
  const auto integer = [&](const char* key) { return *header.find<std::int64_t>(key); };
  EXPECT_EQ(integer("test.u8"), 200);
  EXPECT_EQ(integer("test.i8"), -100);
  EXPECT_EQ(integer("test.u16"), 60000);
  EXPECT_EQ(integer("test.i16"), -30000);
  EXPECT_EQ(integer("test.u32"), 4'000'000'000);
  EXPECT_EQ(integer("test.i32"), -2'000'000'000);
  EXPECT_EQ(integer("test.u64"), std::int64_t{1} << 60);
  EXPECT_EQ(integer("test.i64"), -(std::int64_t{1} << 60));
  EXPECT_EQ(*header.find<double>("test.f32"), 0.5);
  EXPECT_EQ(*header.find<double>("test.f64"), 0.1);
  EXPECT_TRUE(*header.find<bool>("test.yes"));
  EXPECT_FALSE(*header.find<bool>("test.no"));
  EXPECT_EQ(*header.find<std::string>("test.word"), "größer");
  EXPECT_THAT(*header.find<std::vector<std::string>>("test.words"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*header.find<std::vector<std::int64_t>>("test.numbers"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*header.find<std::vector<double>>("test.floats"), ElementsAre(0.5, -0.25));
  EXPECT_THAT(*header.find<std::vector<bool>>("test.flags"), ElementsAre(true, false));
  EXPECT_EQ(header.find<double>("test.u8"), nullptr);
  EXPECT_EQ(header.find<double>("test.none"), nullptr);
}

TEST(GgufHeader, ListsTensorsInTorchsOrderOfDimensions) {
  const GgufHeader header = read_gguf_header(gguf_types);
  ASSERT_EQ(header.tensors.size(), 11u);
  EXPECT_EQ(header.tensors[0].name, "f32");
  EXPECT_THAT(header.tensors[0].shape, ElementsAre(3, 4, 5));
  EXPECT_EQ(header.tensors[0].bytes, 240u);
  EXPECT_EQ(header.tensors[3].name, "q8_0");
  EXPECT_THAT(header.tensors[3].shape, ElementsAre(12, 64));
  EXPECT_EQ(header.tensors[3].bytes, 12u * 2 * 34);
}

TEST(GgufHeader, ReadsVersion2AndOtherAlignments) {
  const std::string old = HeaderBytes(1, 0, 2).tensor("a", {2, 3}, GgufType::F32, 0).with_data(24);
  EXPECT_THAT(parse(old).tensors.at(0).shape, ElementsAre(3, 2));
  const std::string wide = HeaderBytes(2, 1)
                               .key("general.alignment", 4)
                               .number(64, 4)
                               .tensor("a", {1}, GgufType::F32, 0)
                               .tensor("b", {1}, GgufType::F32, 64)
                               .with_data(128);
  const GgufHeader header = parse(wide);
  EXPECT_EQ(header.alignment, 64u);
  EXPECT_EQ(header.tensors[0].begin % 64, 0u);
  EXPECT_EQ(header.tensors[1].begin - header.tensors[0].begin, 64u);
}

TEST(GgufHeader, RejectsFilesOfOtherKinds) {
  EXPECT_THAT(gguf_error(""), HasSubstr("is not a GGUF file"));
  EXPECT_THAT(gguf_error(std::string(100, 'x')), HasSubstr("is not a GGUF file"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 0, 1).with_data(0)),
              AllOf(HasSubstr("it has version 1"), HasSubstr("x.gguf")));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 0, 0x03000000).with_data(0)), HasSubstr("big-endian"));
}

TEST(GgufHeader, RejectsSizesThatTheFileDoesNotHave) {
  constexpr std::uint64_t huge = std::uint64_t{1} << 60;
  EXPECT_THAT(gguf_error(HeaderBytes(huge, 0).with_data(0)), HasSubstr("announces"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, huge).with_data(0)), HasSubstr("announces"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 1).number(huge).with_data(64)),
              HasSubstr("a key of the metadata has 1152921504606846976 bytes"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 1).key("a", 9).number(8, 4).number(huge).with_data(64)),
              HasSubstr("'a' has 1152921504606846976 values"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 1).key("a", 8).number(huge).with_data(64)),
              HasSubstr("a string of the metadata has"));
  EXPECT_THAT(
      gguf_error(HeaderBytes(1, 0).tensor("a", {huge, huge}, GgufType::F32, 0).with_data(0)),
      HasSubstr("larger than any memory"));
  EXPECT_THAT(gguf_error(HeaderBytes(1, 0).tensor("a", {8}, GgufType::F32, 0).with_data(31)),
              HasSubstr("tensor 'a' of 32 bytes"));
  EXPECT_THAT(gguf_error(HeaderBytes(1, 0).tensor("a", {8}, GgufType::F32, huge).with_data(32)),
              HasSubstr("not within the file"));
}

TEST(GgufHeader, RejectsTensorsThatCannotBeRead) {
  const auto one = [](std::vector<std::uint64_t> sizes, std::uint32_t type, std::uint64_t at = 0) {
    return gguf_error(HeaderBytes(1, 0).tensor("blk.0", sizes, GgufType{type}, at).with_data(1024));
  };
  EXPECT_THAT(one({256}, 10),
              AllOf(HasSubstr("'blk.0' has the type Q2_K, which is not supported (F32, F16, BF16"),
                    HasSubstr("x.gguf")));
  EXPECT_THAT(one({256}, 77), HasSubstr("the type type 77"));
  EXPECT_THAT(one({33}, 2), HasSubstr("of shape [33] has no rows of whole blocks of 32"));
  EXPECT_THAT(one({1, 1, 1, 1, 1}, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(one({4}, 0, 16), HasSubstr("not a multiple of the alignment 32"));
  EXPECT_THAT(gguf_error(HeaderBytes(2, 0)
                             .tensor("a", {16}, GgufType::F32, 0)
                             .tensor("b", {16}, GgufType::F32, 32)
                             .with_data(96)),
              HasSubstr("tensors 'a' and 'b' overlap"));
  EXPECT_THAT(gguf_error(HeaderBytes(2, 0)
                             .tensor("a", {8}, GgufType::F32, 0)
                             .tensor("a", {8}, GgufType::F32, 32)
                             .with_data(64)),
              HasSubstr("the tensor 'a' twice"));
}

TEST(GgufHeader, RejectsMetadataThatCannotBeRead) {
  EXPECT_THAT(
      gguf_error(HeaderBytes(0, 2).key("a", 0).number(1, 1).key("a", 0).number(1, 1).with_data(9)),
      HasSubstr("the key 'a' twice"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 1).key("a", 13).with_data(9)),
              HasSubstr("unknown type 13"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 1).key("a", 7).number(2, 1).with_data(9)),
              HasSubstr("neither true nor false"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 1).key("a", 10).number(~std::uint64_t{0}).with_data(9)),
              HasSubstr("does not fit 63 bits"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 1).key("a", 9).number(9, 4).number(0).with_data(9)),
              HasSubstr("array of arrays"));
  EXPECT_THAT(gguf_error(HeaderBytes(0, 1).key("\xff", 0).number(1, 1).with_data(9)),
              HasSubstr("not UTF-8"));
  for (const std::uint64_t alignment : {0, 3, 1 << 21})
    EXPECT_THAT(
        gguf_error(HeaderBytes(0, 1).key("general.alignment", 4).number(alignment, 4).with_data(9)),
        HasSubstr("power of 2"));
}

TEST(Dequantise, EqualsPythonBitForBit) {
  const FileBytes file(gguf_types);
  const std::string expected =
      read_file(std::filesystem::path(TRESTLE_SOURCE_DIR) / "tests/golden/gguf/types.f32");
  std::size_t at = 0;
  for (const GgufTensor& tensor : read_gguf_header(file).tensors) {
    const GgufBlock block = block_of(tensor.type);
    std::vector<float> values(tensor.bytes / block.bytes * block.elements);
    dequantise(tensor.type, file.read(tensor.begin, tensor.bytes), values.data());
    ASSERT_LE(at + values.size() * sizeof(float), expected.size());
    std::vector<float> wanted(values.size());
    std::memcpy(wanted.data(), expected.data() + at, wanted.size() * sizeof(float));
    at += wanted.size() * sizeof(float);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(wanted[i]))
          << tensor.name << " " << i << ": " << values[i] << ", not " << wanted[i];
  }
  EXPECT_EQ(at, expected.size());
}

TEST(Dequantise, RejectsHalfABlock) {
  float out[32];
  EXPECT_THAT(support::message_of<UsageError>(
                  [&] { dequantise(GgufType::Q4_0, std::string(17, 'x'), out); }),
              HasSubstr("17 bytes are not whole blocks of Q4_0"));
}

TEST(FuzzGguf, DamageGivesAnErrorOrTensorsWithinTheFile) {
  const std::string python = read_file(gguf_types).substr(0, 1400);
  const std::string small = HeaderBytes(2, 3)
                                .key("general.alignment", 4)
                                .number(32, 4)
                                .key("words", 9)
                                .number(8, 4)
                                .number(2)
                                .word("a")
                                .word("bc")
                                .key("on", 7)
                                .number(1, 1)
                                .tensor("a", {32, 2}, GgufType::Q4_0, 0)
                                .tensor("b", {8}, GgufType::F32, 64)
                                .with_data(96);
  const auto result = fuzz::run(
      {small, small, python},
      [](std::string_view bytes) {
        for (const GgufTensor& tensor : parse(std::string(bytes)).tensors) {
          ASSERT_LE(tensor.bytes, bytes.size());
          ASSERT_LE(tensor.begin, bytes.size() - tensor.bytes);
          const GgufBlock block = block_of(tensor.type);
          std::vector<float> values(tensor.bytes / block.bytes * block.elements);
          dequantise(tensor.type, bytes.substr(tensor.begin, tensor.bytes), values.data());
          std::int64_t elements = 1;
          for (const std::int64_t size : tensor.shape) elements *= size;
          ASSERT_EQ(static_cast<std::size_t>(elements), values.size());
        }
      },
      {.iterations = 20'000});
  EXPECT_GT(result.accepted, 200);
  EXPECT_GT(result.refused, 5000);
}

}  // namespace
}  // namespace trestle::checkpoint
