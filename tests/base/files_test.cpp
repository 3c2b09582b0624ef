#include "trestle/base/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <thread>

#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/overwrite.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using support::message_of;
using testing::AllOf;
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

// While it lives, no file of this process may grow beyond the given size, like a small full disk.
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

TEST_F(Files, WritesAndReadsBack) {
  const std::string bytes("a\0b\n", 4);
  write_file(folder_ / "x", bytes);
  EXPECT_EQ(read_file(folder_ / "x"), bytes);
  write_file(folder_ / "x", "");
  EXPECT_EQ(read_file(folder_ / "x"), "");
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, AcceptsAStreamingWriter) {
  write_file(folder_ / "x", [](std::ostream& out) { out << "one " << 2; });
  EXPECT_EQ(read_file(folder_ / "x"), "one 2");
}

// Sizes below and above the write buffer, and above the block that is flushed to the disk.
TEST_F(Files, KeepsTheOrderOfWritesOfAllSizes) {
  std::string expected;
  write_file(folder_ / "x", [&](std::ostream& out) {
    char letter = 'a';
    for (const std::size_t size : {1, 0, 65'534, 1, 1, 65'536, 65'537, 100, 9 << 20, 65'535, 3}) {
      const std::string piece(size, letter++);
      out.write(piece.data(), static_cast<std::streamsize>(piece.size()));
      out.put('|');
      expected += piece + '|';
    }
  });
  EXPECT_TRUE(read_file(folder_ / "x") == expected);
}

// A large file is not copied in memory.
TEST_F(Files, StreamsAWriterToTheFile) {
  const std::string much(1 << 20, 'm');
  std::uintmax_t there = 0;
  write_file(folder_ / "x", [&](std::ostream& out) {
    out << much;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      there += entry.file_size();
  });
  EXPECT_EQ(there, much.size());
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, KeepsTheOldFileIfKilledWhileWriting) {
  write_file(folder_ / "x", "old");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    write_file(folder_ / "x", [](std::ostream& out) {
      out << std::string(1 << 20, 'n');
      kill(getpid(), SIGKILL);
    });
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(folder_ / "x"), "old");
}

TEST_F(Files, KeepsTheOldFileIfTheWriterThrows) {
  write_file(folder_ / "x", "old");
  EXPECT_THROW(write_file(folder_ / "x",
                          [](std::ostream& out) {
                            out << "new" << std::string(1 << 20, 'n');
                            throw UsageError("half way");
                          }),
               UsageError);
  EXPECT_EQ(read_file(folder_ / "x"), "old");
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, KeepsTheOldFileAndCleansUpWithoutSpace) {
  write_file(folder_ / "x", "old");
  std::string message;
  {
    const SmallFiles limit(4096);
    message = message_of<FileError>([&] { write_file(folder_ / "x", std::string(100'000, 'n')); });
  }
  EXPECT_THAT(message, HasSubstr("cannot write"));
  EXPECT_THAT(message, HasSubstr((folder_ / "x").string()));
  EXPECT_EQ(read_file(folder_ / "x"), "old");
  EXPECT_EQ(count(), 1u);
}

TEST_F(Files, ReportsNoSpaceToAStreamingWriter) {
  write_file(folder_ / "x", "old");
  for (const int pieces : {1, 10, 1000}) {  // noticed at the end, or while writing
    std::string message;
    {
      const SmallFiles limit(4096);
      message = message_of<FileError>([&] {
        write_file(folder_ / "x", [pieces](std::ostream& out) {
          for (int i = 0; i < pieces; ++i) out << std::string(10'000, 'n');
        });
      });
    }
    EXPECT_THAT(message, HasSubstr("File too large")) << pieces;
    EXPECT_THAT(message, HasSubstr((folder_ / "x").string()));
    EXPECT_EQ(read_file(folder_ / "x"), "old");
    EXPECT_EQ(count(), 1u);
  }
}

TEST_F(Files, WritesAllOrNothingToAPipe) {
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int end = open(pipe.c_str(), O_RDWR | O_NONBLOCK);
  ASSERT_GE(end, 0);
  std::array<char, 16> got{};
  const auto writer = [](bool fail) {
    return [fail](std::ostream& out) {
      out << "half";
      if (fail) throw UsageError("half way");
      out << " whole";
    };
  };
  EXPECT_THROW(write_file(pipe, writer(true)), UsageError);
  EXPECT_EQ(read(end, got.data(), got.size()), -1);
  write_file(pipe, writer(false));
  EXPECT_EQ(read(end, got.data(), got.size()), 10);
  EXPECT_EQ(std::string(got.data()), "half whole");
  close(end);
}

TEST_F(Files, ReportsAFullDevice) {
  const std::string message = message_of<FileError>([] { write_file("/dev/full", "something"); });
  EXPECT_THAT(message, HasSubstr("No space left on device"));
  EXPECT_THAT(message, HasSubstr("Free some space"));
}

TEST_F(Files, RefusesToReadEndlessDevices) {
  for (const auto& read : {read_file, read_text_file}) {
    for (const char* device : {"/dev/zero", "/dev/urandom"})
      EXPECT_THAT(message_of<FileError>([&] { read(device); }),
                  AllOf(HasSubstr(device), HasSubstr("is a device, not a file")));
    EXPECT_EQ(read("/dev/null"), "");
  }
}

// A file with a hole of 2 TiB, which no memory holds, and an endless pipe.
TEST_F(Files, RefusesTextWithoutEnd) {
  write_file(folder_ / "long", "a");
  std::filesystem::resize_file(folder_ / "long", std::uintmax_t{2} << 40);
  EXPECT_THAT(message_of<FileError>([&] { read_text_file(folder_ / "long"); }),
              HasSubstr("it has 2.0 TiB, and text has at most 64.0 MiB"));
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] {
    const int end = open(pipe.c_str(), O_WRONLY);
    const std::string block(1 << 20, 'x');
    signal(SIGPIPE, SIG_IGN);
    while (write(end, block.data(), block.size()) > 0) {
    }
    close(end);
  });
  EXPECT_THAT(message_of<FileError>([&] { read_text_file(pipe); }),
              HasSubstr("it has no end: 64.0 MiB were read"));
  writer.join();
  std::filesystem::remove(pipe);
  std::filesystem::remove(folder_ / "long");
}

TEST_F(Files, NamesMissingFilesAndFolders) {
  EXPECT_THAT(message_of<FileError>([&] { read_file(folder_ / "none"); }), HasSubstr("none"));
  EXPECT_THAT(message_of<FileError>([&] { write_file(folder_ / "no" / "x", "a"); }),
              HasSubstr("does not exist"));
  EXPECT_THAT(message_of<FileError>([&] { read_file(folder_); }), HasSubstr("directory"));
  EXPECT_THAT(message_of<FileError>([&] { write_file(folder_, "a"); }), HasSubstr("directory"));
  EXPECT_EQ(count(), 0u);
}

// Root may read every file, so the test reads as another user.
TEST_F(Files, HintsOfReadingAreAboutReading) {
  const auto closed = folder_ / "closed";
  write_file(closed, "a");
  std::filesystem::permissions(closed, std::filesystem::perms::none);
  constexpr uid_t unprivileged = 65'534;
  const uid_t self = geteuid();
  if (self == 0) {
    ASSERT_EQ(seteuid(unprivileged), 0);
  }
  const std::string message = message_of<FileError>([&] { read_file(closed); });
  ASSERT_EQ(seteuid(self), 0);
  EXPECT_THAT(message, AllOf(HasSubstr("Permission denied"), HasSubstr("whether it may be read"),
                             testing::Not(HasSubstr("written"))));
}

TEST_F(Files, ErrorsHaveTheirPathOnce) {
  const std::filesystem::path none = folder_ / "none" / "x";
  for (const std::string& message : {message_of<FileError>([&] { read_file(none); }),
                                     message_of<FileError>([&] { write_file(none, "a"); })}) {
    EXPECT_EQ(message.find(none.string()), 0u) << message;
    EXPECT_EQ(message.find(none.string(), 1), std::string::npos) << message;
  }
}

TEST_F(Files, ExistingOnesAreOverwrittenOnlyIfAllowed) {
  const auto refused = [&](const std::vector<std::filesystem::path>& files,
                           Overwrite overwrite = Overwrite::Refuse) {
    return message_of<UsageError>([&] { refuse_overwriting(files, overwrite, "--out"); });
  };
  const auto a = folder_ / "a", b = folder_ / "b", link = folder_ / "link";
  EXPECT_EQ(refused({a, b}), "nothing was thrown");
  write_file(a, "mine");
  EXPECT_THAT(refused({a}), HasSubstr("--out " + a.string() + ": exists already"));
  EXPECT_THAT(refused({a, b}), HasSubstr("--out: 1 of 2 files that would be written exist"));
  EXPECT_EQ(refused({a, b}, Overwrite::Allow), "nothing was thrown");
  EXPECT_THAT(refused({folder_}), HasSubstr("exists already"));
  std::filesystem::create_symlink("nowhere", link);
  EXPECT_THAT(refused({link}), HasSubstr("link: exists already"));
  EXPECT_EQ(refused({"/dev/null"}), "nothing was thrown") << "it has no content to lose";
}

}  // namespace
}  // namespace trestle
