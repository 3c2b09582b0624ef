#include "trestle/device/virtual/block_cache.h"

#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <bit>
#include <fstream>
#include <limits>
#include <string>

namespace trestle::virt {
namespace {

constexpr std::size_t smallest = 512;
constexpr int smallest_log2 = 9;
constexpr std::size_t slack = std::size_t{64} << 20;
constexpr auto relaxed = std::memory_order_relaxed;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool keeps_blocks = false;
#else
constexpr bool keeps_blocks = true;
#endif

// Free memory of the whole machine; unlimited if the system does not report it. A container's own
// limit is not known here.
std::size_t bytes_available() {
  std::ifstream in("/proc/meminfo");
  std::size_t available = 0;
  bool known = false;
  for (std::string name, unit; in >> name;) {
    std::size_t kibibytes = 0;
    if (!(in >> kibibytes)) break;
    if (name == "MemAvailable:" || name == "SwapFree:") available += kibibytes * 1024;
    known |= name == "MemAvailable:";
    std::getline(in, unit);
  }
  return known ? available : std::numeric_limits<std::size_t>::max();
}

// With overcommit, the system would kill the process when the memory is written to.
void* allocate(std::size_t bytes) {
  constexpr std::size_t large = std::size_t{1} << 30;  // below, it is not worth reading the file
  TORCH_CHECK(bytes < large || bytes <= bytes_available(),
              "can't allocate memory: you tried to allocate ", bytes, " bytes.");
  return c10::alloc_cpu(bytes);
}

}  // namespace

// Class 0 is 512 bytes; class 8e + s, s in 1..8, is 2^(9+e) * (1 + s/8).
int BlockCache::class_of(std::size_t bytes) {
  if (bytes <= smallest) return 0;
  const int log2 = std::bit_width(bytes - 1) - 1;  // 2^log2 < bytes <= 2^(log2 + 1)
  const std::size_t step = std::size_t{1} << (log2 - 3);
  const std::size_t steps = (bytes - (std::size_t{1} << log2) + step - 1) / step;
  return (log2 - smallest_log2) * 8 + static_cast<int>(steps);
}

std::size_t BlockCache::class_bytes(int size_class) {
  if (size_class == 0) return smallest;
  const int log2 = smallest_log2 + (size_class - 1) / 8;
  const std::size_t steps = static_cast<std::size_t>((size_class - 1) % 8 + 1);
  return (std::size_t{1} << log2) + (steps << (log2 - 3));
}

void* BlockCache::take(std::size_t bytes, int& size_class) {
  size_class = class_of(bytes);
  const std::size_t rounded = class_bytes(size_class);
  void* block = nullptr;
  if (keeps_blocks) {
    Bucket& bucket = buckets_[size_class];
    const std::lock_guard lock(bucket.mutex);
    if (!bucket.blocks.empty()) {
      block = bucket.blocks.back();
      bucket.blocks.pop_back();
      kept_.fetch_sub(rounded, relaxed);
    }
  }
  if (!block) {
    make_room(rounded);
    try {
      block = allocate(rounded);
    } catch (...) {
      if (kept() == 0) throw;
      clear();
      block = allocate(rounded);
    }
  }
  const std::size_t now = in_use_.fetch_add(rounded, relaxed) + rounded;
  std::size_t most = most_in_use_.load(relaxed);
  while (now > most && !most_in_use_.compare_exchange_weak(most, now, relaxed)) {
  }
  return block;
}

void BlockCache::give(void* block, int size_class) noexcept {
  const std::size_t rounded = class_bytes(size_class);
  in_use_.fetch_sub(rounded, relaxed);
  if (keeps_blocks) {
    Bucket& bucket = buckets_[size_class];
    const std::lock_guard lock(bucket.mutex);
    try {
      bucket.blocks.push_back(block);
      kept_.fetch_add(rounded, relaxed);
      return;
    } catch (const std::bad_alloc&) {  // no memory to remember the block by
    }
  }
  c10::free_cpu(block);
}

// Only a request that no kept block serves makes the total grow, so only here is the bound checked.
void BlockCache::make_room(std::size_t bytes) {
  const std::size_t wanted = in_use_.load(relaxed) + bytes;
  const std::size_t most = std::max(most_in_use_.load(relaxed), wanted);
  const std::size_t bound = most + most / 2 + slack;
  while (wanted + kept() > bound && give_up_one()) {
  }
}

bool BlockCache::give_up_one() noexcept {
  for (int looked_at = 0; looked_at < class_count; ++looked_at) {
    const int size_class = static_cast<int>(hand_.fetch_add(1, relaxed) % class_count);
    Bucket& bucket = buckets_[size_class];
    void* block = nullptr;
    {
      const std::lock_guard lock(bucket.mutex);
      if (bucket.blocks.empty()) continue;
      block = bucket.blocks.back();
      bucket.blocks.pop_back();
    }
    kept_.fetch_sub(class_bytes(size_class), relaxed);
    c10::free_cpu(block);
    return true;
  }
  return false;
}

void BlockCache::clear() noexcept {
  while (give_up_one()) {
  }
}

}  // namespace trestle::virt
