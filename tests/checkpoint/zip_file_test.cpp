#include "trestle/checkpoint/files/pickle/zip_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/fuzz/fuzz.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/checkpoint/files/pickle/pickled_state_dict.h"

namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path golden_archives = fs::path(TRESTLE_SOURCE_DIR) / "tests/golden/weights";

template <class Action>
std::string archive_error(Action action) {
  try {
    action();
  } catch (const FormatError& error) {
    return error.what();
  }
  return "it was accepted";
}

TEST(ZipFile, ReadsTheEntriesOfTorchSave) {
  const ZipFile file(golden_archives / "python.pt");
  const std::string folder = file.folder_of("data.pkl");
  EXPECT_EQ(folder, "python/");
  EXPECT_EQ(file.read(folder + "byteorder"), "little");
  EXPECT_EQ(file.size(folder + "data/0"), 48u);
  EXPECT_FALSE(file.has(folder + "data/100"));
  EXPECT_THAT(archive_error([&] { file.size(folder + "data/100"); }), HasSubstr("is missing"));
  EXPECT_THAT(archive_error([&] { file.folder_of("constants.pkl"); }),
              HasSubstr("a zip archive without constants.pkl"));
  char few[4] = {};
  file.read(folder + "byteorder", few, 4);
  EXPECT_EQ(std::string(few, 4), "litt");
  EXPECT_THAT(archive_error([&] { file.read(folder + "byteorder", few, 7); }),
              HasSubstr("has 6 bytes, but 7 are needed"));
}

TEST(ZipFile, RejectsCompressedEntriesAndOtherFiles) {
  const ZipFile file(golden_archives / "compressed.pt");
  EXPECT_THAT(archive_error([&] { file.size("python/data.pkl"); }), HasSubstr("is compressed"));
  EXPECT_THAT(archive_error([&] { ZipFile(golden_archives / "old_format.pt"); }),
              HasSubstr("the zip archive is broken"));
}

TEST(ZipFile, AnyBytesEitherReadOrThrowAnError) {
  std::vector<std::string> seeds;
  for (const char* name : {"python.pt", "checkpoint.pt", "compressed.pt"})
    seeds.push_back(read_file(golden_archives / name));
  const fs::path path =
      fs::path(TRESTLE_BINARY_DIR) / "scratch" / ("zip_fuzz_" + std::to_string(getpid()));
  fs::create_directories(path.parent_path());
  const auto result = fuzz::run(seeds,
                                [&](std::string_view bytes) {
                                  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
                                  const ZipFile file(path);
                                  const std::string folder = file.folder_of("data.pkl");
                                  const std::string content = file.read(folder + "data.pkl");
                                  const Pickle pickle = parse_pickle(content, "fuzz");
                                  find_state_dict(pickle, "fuzz");
                                  for (const PickledStorage& storage : pickle.storages) {
                                    const std::string entry = folder + "data/" + storage.key;
                                    EXPECT_LE(file.size(entry), bytes.size());
                                    EXPECT_EQ(file.read(entry).size(), file.size(entry));
                                  }
                                },
                                {.iterations = 5000, .longest = 8192});
  fs::remove(path);
  EXPECT_GT(result.accepted, 10);
  EXPECT_GT(result.refused, 1000);
}

}  // namespace
}  // namespace trestle::checkpoint
