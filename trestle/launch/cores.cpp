#include "trestle/launch/cores.h"

#include <sched.h>

#include <cerrno>
#include <memory>

namespace trestle::launch {

std::vector<int> allowed_cores() {
  // sched_getaffinity fails with EINVAL if the machine has more cores than the set can hold.
  for (int room = 1024; room <= 1 << 20; room *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
        CPU_ALLOC(room), [](cpu_set_t* given) { CPU_FREE(given); });
    const std::size_t size = CPU_ALLOC_SIZE(room);
    CPU_ZERO_S(size, set.get());
    if (sched_getaffinity(0, size, set.get()) == 0) {
      std::vector<int> cores;
      for (int core = 0; core < room; ++core)
        if (CPU_ISSET_S(static_cast<std::size_t>(core), size, set.get())) cores.push_back(core);
      return cores;
    }
    if (errno != EINVAL) break;
  }
  return {};
}

std::vector<std::vector<int>> split_cores(const std::vector<int>& cores, int ranks) {
  std::vector<std::vector<int>> parts(static_cast<std::size_t>(ranks));
  const std::size_t count = parts.size();
  if (cores.size() < count) return parts;
  for (std::size_t rank = 0; rank < count; ++rank)
    parts[rank].assign(
        cores.begin() + static_cast<std::ptrdiff_t>(rank * cores.size() / count),
        cores.begin() + static_cast<std::ptrdiff_t>((rank + 1) * cores.size() / count));
  return parts;
}

}  // namespace trestle::launch
