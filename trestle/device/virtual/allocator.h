#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <optional>

#include "trestle/device/device.h"
#include "trestle/device/virtual_device.h"

// The memory of virtual devices, and the device that each block is charged to.
//
// Every block has a header with the device it is charged to (or none), so any thread can free it
// and the right meter counts down. The process's CPU allocator is replaced: inside a ChargeScope,
// everything that a CPU kernel allocates, results and temporaries alike, becomes memory of that
// device.
namespace trestle::virt {

inline constexpr int no_device = -1;

// While alive, CPU allocations of this thread count against `device`.
class ChargeScope {
 public:
  explicit ChargeScope(int device);
  ~ChargeScope();
  ChargeScope(const ChargeScope&) = delete;
  ChargeScope& operator=(const ChargeScope&) = delete;

 private:
  int outer_;
};

// The device that this thread's CPU allocations count against; no_device outside of a virtual
// device's operator.
int charged();

c10::Allocator* cpu_allocator();  // untagged pointers, charged by the thread's ChargeScope
c10::Allocator* device_allocator(int device);  // tagged pointers

// Register them with libtorch, for the process.
void install_cpu_allocator();
void install_allocators();  // both

// Takes over the memory behind `host` as device memory: same bytes, tagged pointer.
c10::DataPtr lifted(c10::DataPtr&& host, int device);

MemoryUsage usage(int device);
void reset_peak(int device);
Bytes take_recent_peak(int device);  // since the last call; does not affect the peak above
void set_device_budget(int device, Bytes bytes);
std::optional<OutOfMemoryReport> last_refusal(int device);

}  // namespace trestle::virt
