#include "trestle/base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using testing::HasSubstr;

class Files : public testing::Test {
 protected:
  Files()
      : folder_(std::filesystem::temp_directory_path() / text("trestle_files_test_", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Files() override { std::filesystem::remove_all(folder_); }

  std::size_t count() const {
    const std::filesystem::directory_iterator entries(folder_);
    return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
  }

  std::filesystem::path folder_;
};

// While it lives no file of this process may grow beyond the given size: a full disk in small.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t most) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{most, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &before_); }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
};

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const FileError& error) {
    return error.what();
  }
  return "no FileError";
}

TEST_F(Files, WritesAndReadsBack) {
  const std::string bytes("a\0b\n", 4);
  write_file(folder_ / "x", bytes);
  EXPECT_EQ(read_file(folder_ / "x"), bytes);
  write_file(folder_ / "x", "");
  EXPECT_EQ(read_file(folder_ / "x"), "");
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, WriterMayWriteBitByBit) {
  write_file(folder_ / "x", [](std::ostream& out) { out << "one " << 2; });
  EXPECT_EQ(read_file(folder_ / "x"), "one 2");
}

TEST_F(Files, AThrowingWriterLeavesTheOldFile) {
  write_file(folder_ / "x", "old");
  EXPECT_THROW(write_file(folder_ / "x",
                          [](std::ostream& out) {
                            out << "new";
                            throw UsageError("half way");
                          }),
               UsageError);
  EXPECT_EQ(read_file(folder_ / "x"), "old");
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, NoSpaceKeepsTheOldFileAndLeavesNothingBehind) {
  write_file(folder_ / "x", "old");
  std::string message;
  {
    const SmallFiles limit(4096);
    message = message_of([&] { write_file(folder_ / "x", std::string(100'000, 'n')); });
  }
  EXPECT_THAT(message, HasSubstr("cannot write"));
  EXPECT_THAT(message, HasSubstr((folder_ / "x").string()));
  EXPECT_EQ(read_file(folder_ / "x"), "old");
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, AFullDeviceIsReported) {
  const std::string message = message_of([] { write_file("/dev/full", "something"); });
  EXPECT_THAT(message, HasSubstr("No space left on device"));
  EXPECT_THAT(message, HasSubstr("Free some space"));
}

TEST_F(Files, MissingFilesAndFoldersAreNamed) {
  EXPECT_THAT(message_of([&] { read_file(folder_ / "none"); }), HasSubstr("none"));
  EXPECT_THAT(message_of([&] { write_file(folder_ / "no" / "x", "a"); }),
              HasSubstr("does not exist"));
  EXPECT_THAT(message_of([&] { read_file(folder_); }), HasSubstr("directory"));
  EXPECT_THAT(message_of([&] { write_file(folder_, "a"); }), HasSubstr("directory"));
  EXPECT_EQ(count(), 0u);
}

}  // namespace
}  // namespace trestle
