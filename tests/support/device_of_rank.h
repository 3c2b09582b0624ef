#pragma once

#include <c10/core/Device.h>

namespace trestle::testing {

inline at::Device device_of_rank(int rank) {
  return at::Device(at::kPrivateUse1, static_cast<at::DeviceIndex>(rank));
}

}  // namespace trestle::testing
