#include "trestle/device/virtual/block_cache.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

namespace trestle::virt {
namespace {

TEST(BlockCacheTest, ClassesAreTightAndGrow) {
  std::size_t before = 0;
  for (int size_class = 0; size_class < 300; ++size_class) {
    const std::size_t bytes = BlockCache::class_bytes(size_class);
    EXPECT_GT(bytes, before);
    EXPECT_EQ(BlockCache::class_of(bytes), size_class);
    EXPECT_EQ(BlockCache::class_of(before + 1), size_class);
    if (size_class > 0) {
      EXPECT_LE(bytes - before, before / 8);
    }
    before = bytes;
  }
}

#if !defined(__SANITIZE_ADDRESS__)
// With overcommit, the system would kill the process at the first write.
TEST(BlockCacheTest, FreesKeptBlocksBeforeItReportsOutOfMemory) {
  std::size_t kibibytes = 0, more = 0;
  std::ifstream in("/proc/meminfo");
  for (std::string name, rest; in >> name >> more && std::getline(in, rest);)
    if (name == "MemTotal:" || name == "SwapTotal:") kibibytes += more;
  ASSERT_GT(kibibytes, 0U);
  BlockCache cache;
  int size_class = 0;
  cache.give(cache.take(10000, size_class), size_class);
  ASSERT_GT(cache.kept(), 0U);
  EXPECT_THROW(cache.take(kibibytes * 1024, size_class), c10::Error);
  EXPECT_EQ(cache.kept(), 0U);
}

TEST(BlockCacheTest, AFreedBlockServesTheNextRequestOfItsClass) {
  BlockCache cache;
  int size_class = 0;
  void* first = cache.take(10000, size_class);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0U);
  cache.give(first, size_class);
  EXPECT_EQ(cache.kept(), BlockCache::class_bytes(size_class));
  void* second = cache.take(9800, size_class);
  EXPECT_EQ(first, second);
  EXPECT_EQ(cache.kept(), 0U);
  cache.give(second, size_class);
  cache.clear();
  EXPECT_EQ(cache.kept(), 0U);
}

TEST(BlockCacheTest, KeptMemoryIsBounded) {
  constexpr std::size_t MiB = 1 << 20;
  BlockCache cache;
  for (std::size_t size = 40 * MiB; size < 120 * MiB;
       size += 5 * MiB) {  // a new class each time, so no block is reused
    int size_class = 0;
    cache.give(cache.take(size, size_class), size_class);
    EXPECT_LE(cache.kept(), 150 * MiB * 3 / 2 + 64 * MiB) << "after " << size / MiB;
  }
  cache.clear();
}
#endif

TEST(BlockCacheTest, ThreadsMayShareIt) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 2000; ++i) {
        int size_class = 0;
        auto* block =
            static_cast<int*>(cache.take(static_cast<std::size_t>(600 + i % 7 * 400), size_class));
        *block = t;
        std::this_thread::yield();
        EXPECT_EQ(*block, t);
        cache.give(block, size_class);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  cache.clear();
}

}  // namespace
}  // namespace trestle::virt
