#include "trestle/checkpoint/files/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fuzz/fuzz.h"
#include "trestle/base/error.h"

namespace trestle::checkpoint {
namespace {

using testing::HasSubstr;

const char* const good_header = R"({"__metadata__":{"epoch":"7"},)"
                                R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
                                R"("a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                                R"("none":{"dtype":"U8","shape":[0,4],"data_offsets":[32,32]}})";

std::string header_error(const std::string& json, std::uint64_t bytes) {
  try {
    parse_header(json, bytes, "x.safetensors");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "it was accepted";
}

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirBytes) {
  const SafetensorsHeader header = parse_header(good_header, 32, "x");
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[2].name, "none");
  EXPECT_EQ(header.metadata.at("epoch"), "7");
  EXPECT_EQ(parse_header(format_header(header), 32, "x"), header);
  EXPECT_EQ((8 + format_header(header).size()) % 64, 0u);
}

TEST(SafetensorsHeader, RejectsInconsistentHeaders) {
  EXPECT_THAT(header_error(good_header, 31), HasSubstr("cut short"));
  EXPECT_THAT(header_error(good_header, 33), HasSubstr("cut short or bytes were appended"));
  EXPECT_THAT(header_error("[1]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(header_error("{\"a\":", 0), HasSubstr("not JSON"));
  const std::string twice = R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                            R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  EXPECT_THAT(header_error(twice, 0), HasSubstr("'a' twice"));
  EXPECT_THAT(
      header_error(R"({"a":{"dtype":)" + std::string(1'000'000, '[') + std::string(1'000'000, ']') +
                       R"(,"shape":[0],"data_offsets":[0,0]}})",
                   0),
      HasSubstr("levels deep"));
  auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"a\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
           "}}";
  };
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "[0,4]"), 4), HasSubstr("needs 8 bytes"));
  EXPECT_THAT(header_error(one("\"F33\"", "[1]", "[0,4]"), 4), HasSubstr("F33"));
  EXPECT_THAT(header_error(one("\"F32\"", "[-1]", "[0,4]"), 4), HasSubstr("not a list of sizes"));
  EXPECT_THAT(header_error(one("\"F32\"", "[1]", "[4,0]"), 4), HasSubstr("needs 4 bytes"));
  EXPECT_THAT(header_error(one("\"F32\"", "[1]", "[4,8]"), 8),
              HasSubstr("begins at byte 4, expected 0"));
  EXPECT_THAT(header_error(one("\"F32\"", "[1]", "[0]"), 4), HasSubstr("not two positions"));
  EXPECT_THAT(header_error(one("\"F32\"", "[4611686018427387904,4]", "[0,4]"), 4),
              HasSubstr("larger than any memory"));
  EXPECT_THAT(
      header_error(one("\"F32\"", "[0,4611686018427387904,4611686018427387904]", "[0,0]"), 0),
      HasSubstr("larger than any memory"));
  EXPECT_THAT(header_error(one("\"F32\"", "[1e99]", "[0,4]"), 4), HasSubstr("not a list of sizes"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":1}})", 0), HasSubstr("not a string"));
}

TEST(SafetensorsHeader, AnyBytesEitherReadOrThrowFormatError) {
  const auto result = fuzz::run({good_header}, [](std::string_view bytes) {
    const SafetensorsHeader header = parse_header(bytes, 32, "fuzz");
    EXPECT_EQ(parse_header(format_header(header), 32, "again"), header);
  });
  EXPECT_GT(result.accepted, 0);
  EXPECT_GT(result.refused, 0);
}

}  // namespace
}  // namespace trestle::checkpoint
