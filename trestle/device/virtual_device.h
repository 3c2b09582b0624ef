#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "trestle/base/units.h"

// Virtual devices "virtual:0" to "virtual:N-1" are real torch devices on this machine's CPU and
// memory. Multi-device code runs, and fails, without a GPU as it would with several. Each device
// has a byte budget with real out-of-memory errors, memory meters, its own random generator and its
// own backward thread. Mixing devices is an error, and host code that reads a device pointer
// crashes. Numbers are bit for bit those of the CPU for all operators that use the CPU kernel
// (recurrent cells and attention differ in rounding). Virtual devices are synchronous;
// stream_check.h checks the order of a GPU's streams. See docs/virtual_devices.md.
//
//   trestle::install_virtual_devices({.count = 2});
//   at::Tensor x = torch::ones({4}, at::Device("virtual:1"));
//
// Installation is explicit, process-wide and permanent. It replaces the process's CPU allocator by
// one with a block cache. A process has either virtual devices or CUDA, never both.
namespace trestle {

inline constexpr int most_virtual_devices = 64;

struct VirtualDeviceOptions {
  int count = 1;               // number of devices that the program will use
  int threads_per_device = 0;  // intra-op threads of one device; 0 = threads_of_each(count)
};

// The first call fixes the number of devices for the process to max(count, 16): an unused device
// costs only one sleeping thread from the first backward on (about 0.1 ms to start and 40 KiB). The
// installation takes about 15 ms. The first call also sets the intra-op threads
// (set_worker_threads). Make it before worker threads start and before the first backward():
// libtorch creates backward threads only for devices that exist at that point. Later calls only
// check. Throws UsageError for a count outside 1 to 64. Throws StateError for a later call that
// needs more devices than exist, after a backward(), when CUDA is already in use, and when another
// PrivateUse1 backend is registered.
void install_virtual_devices(const VirtualDeviceOptions& options = {});

bool virtual_devices_installed();

// The number of installed devices: 0 before the installation.
int virtual_device_count();

// The limit on the bytes of the device's tensors; 0 = no limit. With a budget below the bytes in
// use, the next allocation fails. Throws UsageError for a device that is not an existing virtual
// device, and for a negative number.
void set_budget(at::Device device, Bytes bytes);
Bytes budget(at::Device device);

// The allocator's state when an allocation failed. The error is a c10::OutOfMemoryError whose
// message has the same contents.
struct OutOfMemoryReport {
  at::Device device = at::kCPU;
  Bytes requested = 0, in_use = 0, budget = 0, peak = 0;
  std::string node = {};  // name of the autograd node that was running, "" in a forward
  // The node's sequence number: that of the forward operator it belongs to.
  std::uint64_t node_sequence = 0;
  std::string layer = {};  // innermost LayerScope of the thread, "" if none
};

// The latest out-of-memory error on this device, in any thread.
std::optional<OutOfMemoryReport> last_out_of_memory(at::Device device);

}  // namespace trestle
