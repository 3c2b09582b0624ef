#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trestle/data/dataset.h"
#include "trestle/data/sampler.h"

// Batches, prepared ahead of time in separate threads.
//
//   Loader loader(train, split.train, {.batch = 16, .order = Order::Shuffled, .seed = 42});
//   for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
//     for (Batch& batch : loader.epoch(epoch)) step(batch.inputs, batch.targets);
//   }
//
// Over ranks, each rank reads its share:
//
//   Loader share(train, {.batch = 16, .sampler = DistributedSampler(
//       train->size(), {.ranks = world.size(), .rank = world.rank(), .seed = 42})});
//   for (Batch& batch : share.epoch_from(epoch, done)) {
//     step(batch.inputs, batch.targets);
//     done = batch.done;   // the position for a checkpoint; resumes with any number of ranks
//   }
namespace trestle::data {

struct Batch {
  at::Tensor inputs;   // [n, ...]: the examples' inputs stacked
  at::Tensor targets;  // [n, ...]
  std::vector<std::string> names = {};
  std::int64_t index = 0;             // within the epoch, from 0
  std::vector<at::Tensor> more = {};  // for each tensor of Sample::more, all examples stacked
  // Examples of the epoch that are done after this batch, over all ranks, without padding: the
  // position for epoch_from(). For the last batch, all examples of the epoch.
  std::int64_t done = 0;

  std::int64_t size() const { return static_cast<std::int64_t>(names.size()); }
};

enum class Order {
  Given,     // the order of the list of indices
  Shuffled,  // a new order in every epoch, depends only on (seed, epoch)
};

enum class LastBatch {
  Keep,  // keep a last batch with fewer examples
  Drop,  // leave it out
};

enum class HostMemory {
  Pageable,
  Pinned,  // a GPU copies from it asynchronously
};

// A contiguous share of each batch, if several readers share the batches. With fewer examples than
// parts, some shares are empty.
struct Share {
  int part = 0;
  int parts = 1;
};

struct LoaderOptions {
  std::int64_t batch = 1;  // examples of a batch; over ranks, of each rank's batch
  Order order = Order::Given;
  LastBatch last_batch = LastBatch::Keep;
  std::uint64_t seed = 0;  // for the order and the transform
  // Distributes the examples over ranks and gives their order, instead of `order`. Its count must
  // equal the loader's number of examples; with a list of indices, it gives positions in that list.
  // All ranks get the same number of batches.
  std::optional<DistributedSampler> sampler = {};
  int workers = 2;  // threads that read, at least 1; they use no intra-op threads of torch
  // Batches that may be ready or in preparation before they are requested, at least 1.
  int prefetch = 4;
  HostMemory memory = HostMemory::Pageable;  // of the batches; Pinned throws without a GPU
  // Changes each example on the reading threads, for example by augment.h. `key` depends only on
  // (seed, epoch, the example's number), so the number of workers and a resume do not change it.
  std::function<Sample(Sample sample, std::uint64_t key)> transform = {};
};

// One pass through the data, created by Loader::epoch. Order and bits of the batches do not depend
// on the number of workers. The destructor stops and joins the workers at any point. Only one
// thread may consume it. An exception of the data set reaches the consumer at its batch, with its
// type and the example's number; the epoch ends after it.
class Epoch {
 public:
  ~Epoch();
  Epoch(Epoch&&) noexcept;
  Epoch& operator=(Epoch&&) noexcept;

  // The next batch, or nothing at the end of the epoch. Waits for a worker if necessary.
  std::optional<Batch> next();

  // For range-for. Advancing reads the next batch; only one pass is possible.
  class Iterator {
   public:
    Iterator() = default;
    explicit Iterator(Epoch& epoch) : epoch_(&epoch), batch_(epoch.next()) {}
    Batch& operator*() { return *batch_; }
    Batch* operator->() { return &*batch_; }
    Iterator& operator++() {
      batch_.reset();  // frees its memory before waiting for the next one
      batch_ = epoch_->next();
      return *this;
    }
    bool operator==(const Iterator& other) const {
      return batch_.has_value() == other.batch_.has_value();
    }

   private:
    Epoch* epoch_ = nullptr;
    std::optional<Batch> batch_;
  };
  Iterator begin() { return Iterator(*this); }
  Iterator end() { return Iterator(); }

 private:
  friend class Loader;
  struct State;
  explicit Epoch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class Loader {
 public:
  // Reads the examples `indices` of a data set, or all of it. Throws UsageError for an option below
  // 1, an index out of range, a sampler with another number of examples, and if there is no batch.
  Loader(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices,
         LoaderOptions options);
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);

  // Number in an epoch, of this rank if there is a sampler. Examples include the sampler's padding
  // and exclude those dropped by LastBatch::Drop.
  std::int64_t batches() const { return batches_from(0); }
  std::int64_t examples() const;

  // Starts reading epoch `epoch` at batch `first_batch` (0 <= first_batch <= batches()). A resumed
  // run gets the remaining batches of the uninterrupted epoch. The epoch keeps the data set alive,
  // not the loader. With Part::Input or Part::Target the batches' other tensor is undefined; the
  // tensor that is read has the same bits.
  Epoch epoch(std::int64_t epoch, std::int64_t first_batch = 0, Part part = Part::Both,
              Share share = {}) const;

  // Starts reading epoch `epoch` after its first `position` examples, counted over all ranks (0 <=
  // position <= the examples of all ranks): Batch::done of the last step. The rest is distributed
  // over the current ranks in batches of the current size, and each example is read once, except
  // for the sampler's padding. With the same ranks and batch size, the batches are those of the
  // uninterrupted epoch.
  Epoch epoch_from(std::int64_t epoch, std::int64_t position, Part part = Part::Both) const;
  std::int64_t batches_from(std::int64_t position) const;

  // Reads one batch of an epoch in the calling thread, 0 <= index < batches().
  Batch read(std::int64_t epoch, std::int64_t index, Part part = Part::Both,
             Share share = {}) const;

  // The examples of an epoch in order; with a sampler, those of this rank.
  std::vector<std::int64_t> order(std::int64_t epoch) const { return order_from(epoch, 0); }

  const Dataset& dataset() const { return *dataset_; }
  const LoaderOptions& options() const { return options_; }

 private:
  std::int64_t count_from(std::int64_t position) const;
  std::vector<std::int64_t> order_from(std::int64_t epoch, std::int64_t position) const;
  Epoch start(std::int64_t epoch, std::int64_t position, std::int64_t first_batch, Part part,
              Share share) const;

  std::shared_ptr<const Dataset> dataset_;
  std::vector<std::int64_t> indices_;
  LoaderOptions options_;
};

}  // namespace trestle::data
