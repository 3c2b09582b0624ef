// Event files, compared with the bytes of TensorBoard's own writer.
#include "trestle/train/run_folder/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "trestle/base/error.h"
#include "trestle/base/files.h"

namespace trestle::train {
namespace {

namespace fs = std::filesystem;

class EventFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(TRESTLE_BINARY_DIR) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// A record without its time: the length with its checksum, and the event after the time. The
// event's checksum depends on the time.
struct Record {
  std::string head, event;
};

std::vector<Record> records(const std::string& bytes) {
  std::vector<Record> result;
  for (std::size_t at = 0; at + 12 <= bytes.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, 8);
    result.push_back({bytes.substr(at, 12), bytes.substr(at + 12 + 9, size - 9)});
    EXPECT_EQ(bytes[at + 12], '\x09') << "the time is the first field";
    at += 12 + size + 4;
  }
  return result;
}

// Bytes of TensorBoard 2.21's EventFileWriter: tools/golden/make_event_goldens.py.
TEST_F(EventFiles, EqualTensorBoardsByteForByte) {
  EventFile file(folder_, 0);
  file.add(300, {{"loss", 0.5}, {"rate", 1e-3}});
  const std::string bytes = read_file(file.path());
  const auto found = records(bytes);
  ASSERT_EQ(found.size(), 2U);
  using namespace std::string_literals;
  EXPECT_EQ(found[0].event,
            "\x10\0\x1a\x0d"
            "brain.Event:2"s);
  EXPECT_EQ(found[1].head, "\x28\0\0\0\0\0\0\0\xff\x70\x16\x4a"s);  // with its checksum
  EXPECT_EQ(found[1].event,
            "\x10\xac\x02\x2a\x1a\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f"
            "\x0a\x0b\x0a\x04rate\x15\x6f\x12\x83\x3a"s);
}

TEST_F(EventFiles, DropEventsAfterSaveOfResumedRun) {
  const EventFile file(folder_, 7);
  const auto found = records(read_file(file.path()));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[1].head, std::string("\x0f\0\0\0\0\0\0\0\x6d\x53\x2b\x09", 12));
  EXPECT_EQ(found[1].event, "\x10\x08\x3a\x02\x08\x01");
}

TEST_F(EventFiles, HaveUniqueNames) {
  const EventFile first(folder_, 0), second(folder_, 0);
  EXPECT_NE(first.path(), second.path());
  EXPECT_THROW(EventFile(folder_ / "none", 0), FileError);
}

}  // namespace
}  // namespace trestle::train
