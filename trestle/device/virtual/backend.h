#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

#include <atomic>
#include <cstdint>
#include <mutex>

// Shared by the files of the virtual backend. Internal: users include virtual_device.h.
namespace trestle::virt {

inline constexpr c10::DeviceType device_type = c10::DeviceType::PrivateUse1;
inline constexpr c10::DispatchKeySet device_keys{c10::DispatchKey::PrivateUse1};
inline constexpr c10::DispatchKeySet cpu_keys{c10::DispatchKey::CPU};
inline constexpr const char* backend_name = "virtual";

inline c10::Device nth_device(int index) {
  return {device_type, static_cast<c10::DeviceIndex>(index)};
}

inline bool is_virtual(c10::Device device) { return device.type() == device_type; }

// Number of installed devices; 0 before. Written once, by the installation.
int device_count();
void set_device_count(int count);

struct ThreadsOfDevice {
  std::atomic<int> count{0};  // intra-op threads of its operators; 0 = the calling thread's own
  std::mutex mutex;           // guards changes
  int scopes = 0;             // number of open scopes that set `count`
};
ThreadsOfDevice& threads_of(int device);

// The device of this thread's operators that name none.
int current_device();
void set_current_device(int index);  // throws c10::Error for a number that does not exist

// Pointers to device memory have a bit set that makes them invalid addresses. Host code that
// follows one crashes at once, as with a CUDA pointer, instead of silently working. The processor
// must check that bit: x86-64 and RISC-V reject every address whose upper bits are not copies of
// its sign bit. arm64 ignores bits 56 to 63, and its bit 55 selects the kernel's half, which a
// program may not touch.
#if defined(__x86_64__) || (defined(__riscv) && __riscv_xlen == 64)
inline constexpr std::uintptr_t pointer_tag = std::uintptr_t{1} << 62;
#elif defined(__aarch64__)
inline constexpr std::uintptr_t pointer_tag = std::uintptr_t{1} << 55;
#else
#error "virtual devices: choose an address bit that makes a pointer invalid on this processor"
#endif

inline void* tagged(void* host) {
  return host ? reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(host) | pointer_tag)
              : nullptr;
}
inline void* untagged(const void* device) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(device) & ~pointer_tag);
}

}  // namespace trestle::virt
