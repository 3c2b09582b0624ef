#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <vector>

#include "trestle/base/units.h"

// The devices that a model can use: "cpu", "virtual:i" (virtual_device.h) and "cuda:i", behind one
// interface.
//
//   for (const trestle::Device& device : trestle::parse_devices("virtual:2x512MiB")) {
//     const at::Tensor x = torch::ones({4}, device.torch);
//   }
namespace trestle {

struct Device {
  at::Device torch = at::kCPU;
  Bytes budget = 0;  // limit on the bytes of its tensors; 0 = no limit

  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "virtual:1", "cuda:0". A CUDA or virtual device always carries its index.
std::string device_name(at::Device device);
std::string to_string(const Device& device);

// Parses the value of --devices:
//
//     cpu                  the CPU; "cpu,cpu" gives two ranks that share it
//     virtual:2            two virtual devices without a limit (virtual, virtual:0 and virtual:1
//                          give one)
//     virtual:2x512MiB     two virtual devices of 512 MiB each; groups can be joined:
//                          virtual:1x1GiB,virtual:2x512MiB
//     virtual:0,virtual:1  virtual devices by number, with their current budgets
//     cuda:0,cuda:1        GPUs by number (cuda is cuda:0); cuda:all is every GPU of this process
//
// Installs the virtual devices if the text names any. Throws UsageError for any other text and for
// a device that does not exist; the error lists the devices that exist and the accepted forms.
// Throws StateError like install_virtual_devices().
std::vector<Device> parse_devices(std::string_view text);

// Parses the same text for a plan. It installs nothing, the devices need not exist, and the budget
// of a virtual device given by number is unknown (0). Throws UsageError for any other text, and for
// cuda:all, whose count only a machine with GPUs knows.
std::vector<Device> planned_devices(std::string_view text);

// The first `count` virtual devices, each with `budget` bytes (0 = no limit). The first call
// installs them; every call sets the budgets. Throws UsageError for count < 1, and StateError like
// install_virtual_devices().
std::vector<Device> virtual_devices(int count, Bytes budget = 0);

// The first `count` GPUs. Throws UsageError if there are fewer, StateError in
// a process with virtual devices.
std::vector<Device> cuda_devices(int count);

Device cpu_device();

// Bytes of tensors on one device: now, the peak since the last reset, and the limit (0 = none). For
// virtual devices, temporaries inside an operator count too; scratch memory of oneDNN and MKL does
// not (docs/virtual_devices.md). For GPUs these are the caching allocator's allocated bytes. The
// CPU is not metered: all zeros.
struct MemoryUsage {
  Bytes current = 0, peak = 0, budget = 0;
};
MemoryUsage memory_usage(at::Device device);

// Sets the peak to the bytes in use now.
void reset_peak_memory(at::Device device);

// The peak since the last call of this function, to record short spans. MemoryUsage::peak is not
// affected. Only one recorder may use it on a device.
Bytes take_recent_peak(at::Device device);

}  // namespace trestle
