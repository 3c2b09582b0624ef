#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "trestle/base/units.h"

// Virtual devices: "virtual:0" to "virtual:N-1", real torch devices made of this machine's CPU and
// memory, so that multi-device code runs, and fails, without a GPU as it would with several. Each
// has a byte budget with real out-of-memory errors, memory meters, its own random generator and its
// own backward thread; mixing devices is an error, and host code that reads a device pointer
// crashes. Numbers are bit for bit those of the CPU for all operators whose CPU kernel is used
// (recurrent cells and attention differ in rounding). They are synchronous: the order
// of a GPU's streams is checked by stream_check.h instead. See docs/virtual_devices.md.
//
//   trestle::install_virtual_devices({.count = 2});
//   at::Tensor x = torch::ones({4}, at::Device("virtual:1"));
//
// Installing is explicit, process-wide and for good; it replaces the process's CPU allocator by one
// with a block cache. A process has either virtual devices or CUDA, never both.
namespace trestle {

inline constexpr int most_virtual_devices = 64;

struct VirtualDeviceOptions {
  int count = 1;               // how many will be used
  int threads_per_device = 0;  // intra-op threads of one device; 0 = cores / count, at least 1
};

// The number of devices is fixed for the process at the first call: max(count, 16), since an unused
// device costs one sleeping thread from the first backward on (about 0.1 ms to start and 40 KiB).
// The installation itself takes about 15 ms. The first call also sets the intra-op threads
// (set_worker_threads), so make it before worker threads start, and before the first backward():
// libtorch gives backward threads only to the devices that are there by then. Later calls only
// check. Throws UsageError for count outside 1 to 64, StateError for a later call that needs more
// devices than there are, after a backward(), and where CUDA is already in use or another
// PrivateUse1 backend is registered.
void install_virtual_devices(const VirtualDeviceOptions& options = {});

bool virtual_devices_installed();

// How many exist: 0 before the installation.
int virtual_device_count();

// The most bytes of tensors the device may hold; 0 = no limit. A budget below what is held now
// refuses the next allocation. Throws UsageError for a device that is not a virtual one that
// exists, or a negative number.
void set_budget(at::Device device, Bytes bytes);
Bytes budget(at::Device device);

// What the allocator knew when it refused. The error itself is a c10::OutOfMemoryError whose
// message says the same.
struct OutOfMemoryReport {
  at::Device device = at::kCPU;
  Bytes asked = 0, in_use = 0, budget = 0, peak = 0;
  std::string node = {};  // name of the autograd node that was running, "" in a forward
  // The node's sequence number: that of the forward operator it belongs to.
  std::uint64_t node_sequence = 0;
  std::string layer = {};  // innermost LayerScope of the refused thread, "" if none
};

// The latest refusal on this device, from whichever thread.
std::optional<OutOfMemoryReport> last_out_of_memory(at::Device device);

}  // namespace trestle
