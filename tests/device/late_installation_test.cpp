// In a program of its own: a process installs virtual devices once.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

TEST(LateInstallation, AfterABackwardIsRefusedWithTheReason) {
  at::ones({2}).set_requires_grad(true).sum().backward();
  try {
    install_virtual_devices({.count = 2});
    FAIL() << "not refused";
  } catch (const StateError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("virtual devices came too late"));
    EXPECT_THAT(error.what(), testing::HasSubstr("at the start of the program"));
  }
}

}  // namespace
}  // namespace trestle
