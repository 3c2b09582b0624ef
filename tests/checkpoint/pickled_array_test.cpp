#include "trestle/checkpoint/files/pickle/pickled_array.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "tests/fuzz/fuzz.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/safetensors_header.h"

// Python wrote the files (tools/golden/make_weights.py).
namespace trestle::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string golden_arrays = TRESTLE_SOURCE_DIR "/tests/golden/weights/";

template <class T>
std::vector<T> values(const PickledArray& array) {
  std::vector<T> values(array.bytes.size() / sizeof(T));
  std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

std::string message_of(const std::string& file, const std::string& name = "") {
  try {
    read_pickled_array(golden_arrays + file, name);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(PickledArray, FindsATensorByName) {
  const PickledArray whole = read_pickled_array(golden_arrays + "python.pt", "layer.weight");
  EXPECT_EQ(whole.dtype, "F32");
  EXPECT_THAT(whole.shape, ElementsAre(3, 4));
  EXPECT_EQ(values<float>(whole)[11], 11.0f / 8);
  EXPECT_THAT(values<std::int16_t>(read_pickled_array(golden_arrays + "python.pt", "short")),
              ElementsAre(-300));
  EXPECT_THAT(values<std::uint8_t>(read_pickled_array(golden_arrays + "python.pt", "mask")),
              ElementsAre(1, 0, 1));
  EXPECT_TRUE(read_pickled_array(golden_arrays + "python.pt", "none").bytes.empty());
}

// Views of a storage: other elements of the storage are left out.
TEST(PickledArray, ViewsBecomeContiguous) {
  const PickledArray turned = read_pickled_array(golden_arrays + "python.pt", "layer.transposed");
  EXPECT_THAT(turned.shape, ElementsAre(4, 3));
  std::vector<float> expected;
  for (int row = 0; row < 4; ++row)
    for (int column = 0; column < 3; ++column)
      expected.push_back(static_cast<float>(column * 4 + row) / 8);
  EXPECT_EQ(values<float>(turned), expected);
  EXPECT_THAT(values<float>(read_pickled_array(golden_arrays + "python.pt", "layer.row")),
              ElementsAre(0.5f, 0.625f, 0.75f, 0.875f));
}

TEST(PickledArray, ReadsATensorThatWasSavedAlone) {
  const PickledArray ones = read_pickled_array(golden_arrays + "one_tensor.pt", "");
  EXPECT_EQ(ones.dtype, "F32");
  EXPECT_THAT(ones.shape, ElementsAre(2));
  EXPECT_THAT(values<float>(ones), ElementsAre(1, 1));
  EXPECT_FALSE(ones.negated);
  EXPECT_TRUE(read_pickled_array(golden_arrays + "negated.pt", "negated").negated);
  EXPECT_THAT(message_of("one_tensor.pt", "x"), HasSubstr("not 'x'"));
}

TEST(PickledArray, ErrorsListTheExistingNames) {
  EXPECT_THAT(message_of("python.pt"),
              AllOf(HasSubstr("14 tensors: layer.weight, "), HasSubstr("python.pt:layer.weight")));
  EXPECT_THAT(message_of("python.pt", "layer.wait"), HasSubstr("did you mean 'layer.weight'?"));
  EXPECT_THAT(message_of("no_tensors.pt"), HasSubstr("has no tensors"));
  EXPECT_THAT(message_of("none.pt"), HasSubstr("none.pt"));
}

TEST(PickledArray, RejectsCodeAndInvalidSizes) {
  EXPECT_THAT(message_of("command.pt"), HasSubstr("contains 'posix.system'"));
  EXPECT_THAT(message_of("script.pt"), HasSubstr("TorchScript"));
  EXPECT_THAT(message_of("big_endian.pt", "layer.weight"), HasSubstr("big-endian"));
  EXPECT_THAT(message_of("short_storage.pt", "layer.weight"), HasSubstr("but its entry has only"));
}

TEST(FuzzPickledArray, DamageGivesAnErrorOrACompleteArray) {
  const std::string path =
      (std::filesystem::temp_directory_path() / text("trestle_array_", getpid(), ".pt")).string();
  const auto result =
      fuzz::run({read_file(golden_arrays + "python.pt")},
                [&](std::string_view bytes) {
                  write_file(path, bytes);
                  const PickledArray array = read_pickled_array(path, "layer.transposed");
                  std::size_t count = static_cast<std::size_t>(dtype_bytes(array.dtype));
                  for (const std::int64_t side : array.shape)
                    count *= static_cast<std::size_t>(side);
                  ASSERT_EQ(array.bytes.size(), count);
                },
                {.iterations = 300});
  std::filesystem::remove(path);
  EXPECT_GT(result.accepted, 0);
  EXPECT_GT(result.refused, 50);
}

}  // namespace
}  // namespace trestle::checkpoint
