#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <optional>

#include "trestle/device/device.h"
#include "trestle/device/virtual_device.h"

// Where the virtual devices' memory comes from, and who pays for it.
//
// Every block carries a header that names the device it is charged to (or none), so it can be freed
// from any thread and counted down where it was counted up. The process's CPU allocator is
// replaced: inside a ChargeScope, what a CPU kernel allocates, results and temporaries alike, is born as
// memory of that device.
namespace trestle::virt {

inline constexpr int nobody = -1;

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

// The device that this thread's CPU allocations count against, or nobody:
// outside a virtual device's operator.
int charged();

c10::Allocator* cpu_allocator();  // untagged pointers, charged as the thread's ChargeScope says
c10::Allocator* device_allocator(int device);  // tagged pointers

// Registers them with libtorch, for the process.
void install_cpu_allocator();
void install_allocators();  // both

// The memory behind `host`, taken over as device memory: same bytes, tagged pointer.
c10::DataPtr lifted(c10::DataPtr&& host, int device);

MemoryUsage usage(int device);
void reset_peak(int device);
Bytes take_recent_peak(int device);  // since the last call; the peak above is left alone
void set_device_budget(int device, Bytes bytes);
std::optional<OutOfMemoryReport> last_refusal(int device);

}  // namespace trestle::virt
