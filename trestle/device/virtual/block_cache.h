#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

namespace trestle::virt {

// Keeps freed blocks of memory for the next request of their size class (8 classes per
// doubling, so at most 12.5 % is wasted). Without it glibc gives the large blocks of worker
// threads back to the system at every free and faults them in again at every step, a third of
// a convolution pipeline's time.
//
// Bounded: blocks in use and kept together never exceed 3/2 of the most that was in use at once,
// plus 64 MiB: with 9/8, a step of the 31 M U-Net gave 195 MiB back and faulted them in again, with
// 3/2 nothing, and the process was no larger. Blocks that no longer fit the program's sizes are
// given up first come. Under AddressSanitizer nothing is kept, so that it sees every free.
class BlockCache {
 public:
  // A block of at least `bytes` bytes, aligned to 64, and the class to hand back with it. Throws
  // c10::Error when the system has no memory, after giving up everything kept.
  void* take(std::size_t bytes, int& size_class);
  void give(void* block, int size_class) noexcept;
  // Gives every kept block back to the system.
  void clear() noexcept;
  std::size_t kept() const { return kept_.load(std::memory_order_relaxed); }

  static int class_of(std::size_t bytes);
  static std::size_t class_bytes(int size_class);

 private:
  struct Bucket {
    std::mutex mutex;
    std::vector<void*> blocks;
  };
  void make_room(std::size_t bytes);
  bool give_up_one() noexcept;

  static constexpr int class_count = 8 * 54 + 2;
  std::array<Bucket, class_count> buckets_;
  std::atomic<std::size_t> in_use_{0}, most_in_use_{0}, kept_{0};
  std::atomic<unsigned> hand_{0};  // where the search for a block to give up goes on
};

}  // namespace trestle::virt
