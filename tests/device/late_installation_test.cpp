// In a separate program: a process installs virtual devices once.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/base/error.h"
#include "trestle/device/cpu_cache.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

// For programs on plain `cpu`.
TEST(CpuCache, FreedMemoryComesBackAtOnce) {
  cache_cpu_memory();
  cache_cpu_memory();
  const void* memory = nullptr;
  {
    const at::Tensor first = at::ones({2, 1 << 20});
    memory = first.data_ptr();
  }
  const at::Tensor second = at::zeros({2, 1 << 20});
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_EQ(second.data_ptr(), memory);
#endif
  EXPECT_EQ(second.sum().item<float>(), 0);
}

TEST(LateInstallation, FailsAfterABackwardAndGivesTheReason) {
  at::ones({2}).set_requires_grad(true).sum().backward();
  for (const int count : {2, 1, 40}) {  // a second call too: the devices have no backward threads
    try {
      install_virtual_devices({.count = count});
      FAIL() << count << " devices are not refused";
    } catch (const StateError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("virtual devices were installed too late"));
      EXPECT_THAT(error.what(), testing::HasSubstr("at the start of the program"));
    }
  }
}

}  // namespace
}  // namespace trestle
