#pragma once

#include <cstdint>
#include <vector>

// Distributes the examples of an epoch over ranks.
namespace trestle::data {

// Names and defaults are those of Python's torch.utils.data.distributed.DistributedSampler.
struct DistributedSamplerOptions {
  int ranks = 1;  // num_replicas
  int rank = 0;
  bool shuffle = true;  // a new order in every epoch, by torch's generator seeded with seed + epoch
  std::uint64_t seed = 0;
  bool drop_last = false;  // drop the remainder of the division by the ranks instead of padding
};

// Distributes the examples 0 to count - 1 over ranks: rank r of n reads every n-th example of the
// epoch's order, starting at position r, and all ranks read the same number. If the count is not a
// multiple of the ranks, the order is padded with its own beginning; with drop_last its end is
// dropped. The numbers are Python's, for the same seed and epoch.
//
//   DistributedSampler sampler(train->size(), {.ranks = world.size(), .rank = world.rank()});
//   for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);   // without it every epoch has the order of the first
//     for (std::int64_t example : sampler.indices()) use(train->get(example));
//   }
//
// A Loader takes one, and calls set_epoch() itself.
class DistributedSampler {
 public:
  // Throws UsageError for a negative count, for no ranks, and for a rank out of range.
  DistributedSampler(std::int64_t count, DistributedSamplerOptions options);

  // Throws UsageError for an epoch below 0.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }

  // Number of examples that this rank reads in an epoch; the same for every rank. 0 without
  // examples, and with drop_last for fewer examples than ranks.
  std::int64_t size() const { return size_from(0); }

  // This rank's examples in their order.
  std::vector<std::int64_t> indices() const { return indices_from(0); }

  // The same for the rest of an epoch after its first `position` examples, counted over all ranks
  // in the epoch's order (0 <= position <= count). The rest is distributed over the current ranks,
  // and padded or cut. So a run that stopped with 4 ranks may resume with 3, and each example is
  // read once in the epoch, except for the padding. With the same number of ranks, the examples are
  // those of the uninterrupted epoch.
  std::vector<std::int64_t> indices_from(std::int64_t position) const;
  std::int64_t size_from(std::int64_t position) const;

  std::int64_t count() const { return count_; }
  const DistributedSamplerOptions& options() const { return options_; }

 private:
  std::vector<std::int64_t> order() const;

  std::int64_t count_;
  DistributedSamplerOptions options_;
  std::int64_t epoch_ = 0;
};

}  // namespace trestle::data
