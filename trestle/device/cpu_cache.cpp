#include "trestle/device/cpu_cache.h"

#include <mutex>

#include "trestle/device/virtual/allocator.h"

namespace trestle {

void cache_cpu_memory() {
  static std::once_flag once;
  std::call_once(once, virt::install_cpu_allocator);
}

}  // namespace trestle
