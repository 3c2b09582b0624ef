#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "trestle/base/text.h"

namespace trestle::testing {

// A folder for the running test; the destructor removes it.
class ScratchFolder {
 public:
  ScratchFolder()
      : base_(std::filesystem::path(TRESTLE_BINARY_DIR) / "scratch" /
              text("sharding_", ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                   "_", getpid())) {
    std::filesystem::remove_all(base_);
    std::filesystem::create_directories(base_);
  }
  ~ScratchFolder() { std::filesystem::remove_all(base_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::filesystem::path path(const std::string& name) const { return base_ / name; }

 private:
  std::filesystem::path base_;
};

}  // namespace trestle::testing
