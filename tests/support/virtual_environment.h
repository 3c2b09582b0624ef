#pragma once

#include <gtest/gtest.h>

#include "trestle/device/virtual_device.h"

// Include it in one source of a test program that uses virtual devices: they must be installed
// before the process's first backward, whichever test runs first.
namespace trestle::support {

class VirtualEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { install_virtual_devices({.count = 4}); }
};

inline ::testing::Environment* const virtual_environment =
    ::testing::AddGlobalTestEnvironment(new VirtualEnvironment);

}  // namespace trestle::support
