#pragma once

#include <gtest/gtest.h>

#include "trestle/device/virtual_device.h"

// Included by one source of a test program that uses virtual devices: they must be there before the
// first backward of the process, whichever test comes first.
namespace trestle::support {

class VirtualEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { install_virtual_devices({.count = 4}); }
};

inline ::testing::Environment* const virtual_environment =
    ::testing::AddGlobalTestEnvironment(new VirtualEnvironment);

}  // namespace trestle::support
