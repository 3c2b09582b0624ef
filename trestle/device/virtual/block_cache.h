#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

namespace trestle::virt {

// Keeps freed blocks of memory for the next request of their size class (8 classes per doubling, so
// at most 12.5 % is wasted). Without it glibc returns the large blocks of worker threads to the
// system at every free and pays for page faults again at every step, a third of a convolution
// pipeline's time.
//
// Bounded: used and kept blocks together never exceed 3/2 of the peak in use, plus 64 MiB. With
// 9/8, a step of the 31 M U-Net returned 195 MiB and faulted them in again; with 3/2 it returned
// nothing, and the process was no larger. When the bound is reached, blocks are freed from one size
// class after the other. AddressSanitizer builds keep nothing, so that it sees every free.
class BlockCache {
 public:
  // A block of at least `bytes` bytes, aligned to 64, and the class for give(). Throws c10::Error
  // when the system has no memory, after freeing everything kept.
  void* take(std::size_t bytes, int& size_class);
  void give(void* block, int size_class) noexcept;
  // Returns every kept block to the system.
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
  std::atomic<unsigned> hand_{0};  // where the search for a block to free resumes
};

}  // namespace trestle::virt
