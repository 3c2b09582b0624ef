#pragma once

#include <torch/torch.h>

#include <string>

#include "trestle/device/device.h"

namespace trestle::testing {

// Virtual devices 0 to 3, without budgets.
inline at::Device virtual_device(int index) {
  static const std::vector<Device> devices = virtual_devices(4);
  return devices.at(static_cast<std::size_t>(index)).torch;
}

inline at::TensorOptions on_virtual(int index) {
  return at::TensorOptions().device(virtual_device(index));
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && torch::equal(a.detach().cpu(), b.detach().cpu());
}

// The message of the c10::Error that `action` throws, "" if it throws none.
template <class Action>
std::string torch_error(Action action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace trestle::testing
