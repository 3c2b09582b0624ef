#include "trestle/base/file_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;

TEST(FileLock, HasOneHolderAndIsReleasedWithIt) {
  const fs::path path = fs::path(testing::TempDir()) / text("lock_", getpid());
  {
    const std::optional<FileLock> first = FileLock::try_lock(path);
    ASSERT_TRUE(first);
    EXPECT_FALSE(FileLock::try_lock(path));
  }
  std::optional<FileLock> second = FileLock::try_lock(path);
  ASSERT_TRUE(second);
  const FileLock moved = std::move(*second);
  EXPECT_FALSE(FileLock::try_lock(path)) << "a moved lock is still held";
  fs::remove(path);
}

TEST(FileLock, NamesThePathOnFailure) {
  EXPECT_THROW(FileLock::try_lock("/nowhere/at/all"), FileError);
}

}  // namespace
}  // namespace trestle
