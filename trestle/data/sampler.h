#pragma once

#include <cstdint>
#include <vector>

// Which examples of an epoch each rank reads.
namespace trestle::data {

// Names and defaults are those of Python's torch.utils.data.distributed.DistributedSampler.
struct DistributedSamplerOptions {
  int ranks = 1;  // num_replicas
  int rank = 0;
  bool shuffle = true;  // anew in every epoch, by torch's generator seeded with seed + epoch
  std::uint64_t seed = 0;
  bool drop_last = false;  // leave out what does not divide by the ranks, and pad nothing
};

// Divides the examples 0 to count - 1 over ranks: each gets as many, every ranks-th one of the
// epoch's order. Where they do not divide, the order goes on with its own beginning, as often as it
// takes; with drop_last its end is left out. The numbers are Python's, for the same seed and epoch.
//
//   DistributedSampler sampler(train->size(), {.ranks = world.size(), .rank = world.rank()});
//   for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);   // or every epoch has the order of the first
//     for (std::int64_t example : sampler.indices()) use(train->get(example));
//   }
//
// A Loader takes one, and calls set_epoch() itself.
class DistributedSampler {
 public:
  // Throws UsageError for a negative count, no ranks, and a rank that is none of them.
  DistributedSampler(std::int64_t count, DistributedSamplerOptions options);

  // Throws UsageError for an epoch below 0.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }

  // How many this rank reads in an epoch; the same for every rank. 0 where there are none, and with
  // drop_last where there are fewer than ranks.
  std::int64_t size() const { return size_from(0); }

  // This rank's examples in their order.
  std::vector<std::int64_t> indices() const { return indices_from(0); }

  // The same for an epoch of which `position` examples are done, counted over all ranks, in
  // the epoch's order (0 <= position <= count): the others are divided over the ranks that there are
  // now, and it is they that are padded or cut. So ranks that were 4 when a run stopped may be 3 when
  // it goes on, and each example is read once in the epoch but for the padding; with as many ranks as
  // before the examples are those of the uninterrupted epoch.
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
