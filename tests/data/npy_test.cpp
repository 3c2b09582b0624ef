#include "trestle/data/files/npy.h"

#include <gmock/gmock.h>

#include <cstring>
#include <functional>
#include <string>

#include "tests/data/scratch.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"

// NumPy wrote the files (tools/golden/make_npy_goldens.py).
namespace trestle::data {
namespace {

using support::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string golden_npy = TRESTLE_SOURCE_DIR "/tests/golden/npy/";

template <class T>
std::vector<T> values(const NpyArray& array) {
  std::vector<T> values(array.bytes.size() / sizeof(T));
  std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

TEST(Npy, ReadsEveryTypeOfNumber) {
  for (const char* type : {"b1", "u1", "i1", "u2", "i2", "u4", "i4", "i8", "f2", "f4", "f8"}) {
    const NpyArray array = read_npy(golden_npy + type + ".npy");
    EXPECT_EQ(array.type, type);
    EXPECT_THAT(array.shape, ElementsAre(2, 3));
    EXPECT_EQ(array.count(), 6);
  }
  EXPECT_THAT(values<float>(read_npy(golden_npy + "f4.npy")), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values<std::int64_t>(read_npy(golden_npy + "i8.npy")), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(read_npy(golden_npy + "scalar.npy").shape, ElementsAre());
  EXPECT_THAT(read_npy(golden_npy + "row.npy").shape, ElementsAre(4));
  for (const char* format : {"format_2.npy", "format_3.npy"})
    EXPECT_THAT(values<float>(read_npy(golden_npy + format)), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Npy, ErrorsNameTheUnsupportedContent) {
  const auto message = [](const std::string& name) {
    return message_of([&] { read_npy(golden_npy + name); });
  };
  EXPECT_THAT(message("fortran.npy"),
              AllOf(HasSubstr("Fortran order"), HasSubstr("ascontiguousarray")));
  EXPECT_THAT(message("big_endian.npy"), AllOf(HasSubstr("'>f4'"), HasSubstr("big-endian")));
  EXPECT_THAT(message("complex.npy"), HasSubstr("'<c8'"));
  EXPECT_THAT(message("records.npy"), HasSubstr("records"));
  EXPECT_THAT(message("objects.npy"), HasSubstr("'|O'"));
  EXPECT_THAT(message("none.npy"), HasSubstr("No such file"));
  EXPECT_THAT(message("version.txt"), HasSubstr("does not begin like a .npy file"));
}

TEST(Npy, EveryOtherLengthIsAnError) {
  const std::string bytes = read_file(golden_npy + "f4.npy");
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW(parse_npy(bytes.substr(0, length), "a"), FormatError) << length;
  EXPECT_THAT(message_of([&] { parse_npy(bytes + "x", "a.npy"); }),
              AllOf(HasSubstr("a.npy"), HasSubstr("2 x 3 of f4 needs 24"), HasSubstr("are 25")));
}

TEST(Npz, ReadsAnArrayByName) {
  EXPECT_THAT(values<float>(read_npy(golden_npy + "set.npz:x")), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values<std::int64_t>(read_npy(golden_npy + "set.npz:y")), ElementsAre(1, 0));
  EXPECT_THAT(read_npy(golden_npy + "packed.npz:x").shape, ElementsAre(40, 50));
  EXPECT_THAT(read_npy(golden_npy + "one.npz").shape, ElementsAre(2, 3)) << "its only one";
  EXPECT_EQ(file_of_array("a/set.npz:x"), "a/set.npz");
  EXPECT_EQ(file_of_array("a/x.npy"), "a/x.npy");
  EXPECT_EQ(file_of_array("a/set.pt:x.y"), "a/set.pt");
  EXPECT_EQ(file_of_array("a/set.pth:x"), "a/set.pth");
  EXPECT_EQ(file_of_array("a/x.pt"), "a/x.pt");
}

TEST(Npz, ErrorsListTheExistingNames) {
  EXPECT_THAT(message_of([] { read_npy(golden_npy + "set.npz"); }),
              AllOf(HasSubstr("2 arrays: x, y"), HasSubstr("set.npz:x")));
  EXPECT_THAT(message_of([] { read_npy(golden_npy + "set.npz:z"); }),
              AllOf(HasSubstr("no array 'z'"), HasSubstr("It has x, y.")));
  EXPECT_THAT(message_of([] { read_npy(golden_npy + "none.npz:z"); }), HasSubstr("No such file"));
  const Scratch scratch;
  write_file(scratch / "a.npz", "not a zip archive");
  EXPECT_THROW(read_npy((scratch / "a.npz").string()), FormatError);
}

TEST(FuzzNpy, DamageGivesAnErrorOrAWholeArray) {
  const std::string seed = read_file(golden_npy + "f4.npy");
  const auto result =
      fuzz::run({seed, read_file(golden_npy + "u1.npy"), read_file(golden_npy + "format_2.npy")},
                [](std::string_view bytes) {
                  const NpyArray array = parse_npy(bytes, "fuzz");
                  ASSERT_EQ(array.bytes.size(), static_cast<std::size_t>(array.count()) *
                                                    static_cast<std::size_t>(array.type[1] - '0'));
                });
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 1000);
}

TEST(FuzzNpy, DamagedArchives) {
  const Scratch scratch;
  const auto result =
      fuzz::run({read_file(golden_npy + "set.npz"), read_file(golden_npy + "packed.npz")},
                [&](std::string_view bytes) {
                  write_file(scratch / "a.npz", bytes);
                  read_npy((scratch / "a.npz").string() + ":x");
                },
                {.iterations = 400});
  EXPECT_GT(result.accepted, 10);
  EXPECT_GT(result.refused, 50);
}

}  // namespace
}  // namespace trestle::data
