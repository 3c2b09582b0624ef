#include "trestle/data/files/listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/data/scratch.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"

namespace trestle::data {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Listing, HasFilesOrFoldersSortedWithoutHiddenOnes) {
  const Scratch scratch;
  for (const char* name : {"b.png", "a.png", ".DS_Store"}) write_file(scratch / name, "x");
  fs::create_directory(scratch / "c");
  fs::create_directory_symlink(scratch / "c", scratch / "d");
  EXPECT_THAT(files_of(scratch.path()), ElementsAre(scratch / "a.png", scratch / "b.png"));
  EXPECT_THAT(folders_of(scratch.path()), ElementsAre(scratch / "c", scratch / "d"));
  EXPECT_THROW(files_of(scratch / "none"), UsageError);
  EXPECT_THROW(files_of(scratch / "a.png"), UsageError);
}

TEST(Listing, FilesOfWindowsAreSkipped) {
  const Scratch scratch;
  for (const char* name : {"a.png", "Thumbs.db", "desktop.ini", "Desktop.ini.png"})
    write_file(scratch / name, "x");
  EXPECT_THAT(files_of(scratch.path()),
              ElementsAre(scratch / "Desktop.ini.png", scratch / "a.png"));
  EXPECT_THAT(skipped_files_of(scratch.path()),
              ElementsAre(scratch / "Thumbs.db", scratch / "desktop.ini"));
}

// Opening a pipe would wait forever.
TEST(Listing, APipeIsAnError) {
  const Scratch scratch;
  ASSERT_EQ(mkfifo((scratch / "a.png").c_str(), 0600), 0);
  try {
    files_of(scratch.path());
    ADD_FAILURE() << "no error";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a.png: is a pipe, a socket or a device"));
  }
  EXPECT_THAT(folders_of(scratch.path()), ElementsAre());
}

// One unreadable file must not prevent listing the whole folder.
TEST(Listing, ACircularLinkIsAnUnreadableFile) {
  const Scratch scratch;
  fs::create_symlink("a.png", scratch / "a.png");
  fs::create_symlink("nowhere", scratch / "b.png");
  EXPECT_THAT(files_of(scratch.path()), ElementsAre(scratch / "a.png", scratch / "b.png"));
  EXPECT_THROW(read_file(scratch / "a.png"), FileError);
}

// Otherwise a class would be missing, and later classes would have other numbers.
TEST(Listing, AnUnreadableFolderIsAnError) {
  const Scratch scratch;
  fs::create_directory(scratch / "a");
  fs::create_symlink("rose", scratch / "rose");
  EXPECT_THROW(folders_of(scratch.path()), FileError);
}

}  // namespace
}  // namespace trestle::data
