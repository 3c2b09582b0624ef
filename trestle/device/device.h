#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <vector>

#include "trestle/base/units.h"

// The devices a model can be laid over: "cpu", "virtual:i" (virtual_device.h) and
// "cuda:i", behind one interface.
//
//   for (const trestle::Device& device : trestle::parse_devices("virtual:2x512MiB")) {
//     const at::Tensor x = torch::ones({4}, device.torch);
//   }
namespace trestle {

struct Device {
  at::Device torch = at::kCPU;
  Bytes budget = 0;  // the most bytes of tensors it may hold; 0 = no limit

  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "virtual:1", "cuda:0". A CUDA or virtual device always carries its index.
std::string device_name(at::Device device);
std::string to_string(const Device& device);

// Reads what people write behind --devices:
//
//     cpu                  the CPU; "cpu,cpu" gives two ranks that share it
//     virtual:2            two virtual devices without a limit (virtual, virtual:0 and virtual:1
//                          give one)
//     virtual:2x512MiB     two virtual devices of 512 MiB each; groups can be joined:
//                          virtual:1x1GiB,virtual:2x512MiB
//     virtual:0,virtual:1  virtual devices by number, with the budgets they have
//     cuda:0,cuda:1        GPUs by number (cuda is cuda:0); cuda:all is every one of this process
//
// Installs the virtual devices if the text names any. Throws UsageError for text that is none of
// this and for a device that does not exist, naming those that do and what to write instead;
// StateError as install_virtual_devices().
std::vector<Device> parse_devices(std::string_view text);

// The same devices on paper: nothing is installed, nothing need exist, and budgets of virtual devices
// given by number are not known (0). For a plan, not to compute on. Throws UsageError for text that is
// none of this, and for cuda:all, since only a machine with GPUs knows how many that is.
std::vector<Device> planned_devices(std::string_view text);

// The first `count` virtual devices, each with `budget` bytes (0 = no limit). The first call
// installs them; every call sets the budgets. Throws UsageError for count < 1, StateError as
// install_virtual_devices().
std::vector<Device> virtual_devices(int count, Bytes budget = 0);

// The first `count` GPUs. Throws UsageError if there are fewer, StateError in
// a process with virtual devices.
std::vector<Device> cuda_devices(int count);

Device cpu_device();

// Bytes of tensors on one device: now, at most since the last reset, and the limit (0 = none). For
// virtual devices the temporaries inside an operator count too; scratch memory of oneDNN and MKL
// does not (docs/virtual_devices.md). For GPUs these are the caching allocator's allocated bytes.
// The CPU is not metered: all zeros.
struct MemoryUsage {
  Bytes current = 0, peak = 0, budget = 0;
};
MemoryUsage memory_usage(at::Device device);

// From here on the peak counts from what is held now.
void reset_peak_memory(at::Device device);

// The most that was held since the last call, for a record of short spans: MemoryUsage::peak goes on
// as if it had not been asked. One recorder a device.
Bytes take_recent_peak(at::Device device);

}  // namespace trestle
