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

// Batches, prepared ahead of time on threads of their own.
//
//   Loader loader(train, split.train, {.batch = 16, .order = Order::Shuffled, .seed = 42});
//   for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
//     for (Batch& batch : loader.epoch(epoch)) step(batch.inputs, batch.targets);
//   }
//
// Over ranks, where each reads its share:
//
//   Loader share(train, {.batch = 16, .sampler = DistributedSampler(
//       train->size(), {.ranks = world.size(), .rank = world.rank(), .seed = 42})});
//   for (Batch& batch : share.epoch_from(epoch, done)) {
//     step(batch.inputs, batch.targets);
//     done = batch.done;   // what a checkpoint needs to go on with any number of ranks
//   }
namespace trestle::data {

struct Batch {
  at::Tensor inputs;   // [n, ...]: the examples' inputs stacked
  at::Tensor targets;  // [n, ...]
  std::vector<std::string> names = {};
  std::int64_t index = 0;             // within the epoch, from 0
  std::vector<at::Tensor> more = {};  // of each tensor of Sample::more those of all examples
  // Examples of the epoch that are done with this batch, of all ranks together, without padding: where
  // epoch_from() goes on. Of the last batch all that the epoch has.
  std::int64_t done = 0;

  std::int64_t size() const { return static_cast<std::int64_t>(names.size()); }
};

enum class Order {
  Given,     // as the list of indices has it
  Shuffled,  // anew in every epoch, a function of (seed, epoch) alone
};

enum class LastBatch {
  Keep,  // a last batch with fewer examples counts
  Drop,  // it is left out
};

enum class HostMemory {
  Pageable,
  Pinned,  // a GPU copies from it while the host goes on
};

// Of each batch a part in a row, where several take parts of the same batches; some of them none where there are fewer
// examples than parts.
struct Share {
  int part = 0;
  int parts = 1;
};

struct LoaderOptions {
  std::int64_t batch = 1;  // over ranks that of each
  Order order = Order::Given;
  LastBatch last_batch = LastBatch::Keep;
  std::uint64_t seed = 0;  // of the order and of the transform
  // Divides the examples over ranks and says their order, instead of `order`. Of as many examples as
  // the loader has; where that is a list of indices, of places in it. All ranks get as many batches.
  std::optional<DistributedSampler> sampler = {};
  int workers = 2;  // threads that read, at least 1; none uses torch's intra-op threads itself
  // Batches that may be ready or in the making before they are asked for, at least 1.
  int prefetch = 4;
  HostMemory memory = HostMemory::Pageable;  // of the batches; Pinned throws where there is no GPU
  // Changes each example on its way, on the threads that read: augment.h. `key` is a function of
  // (seed, epoch, the example's number) alone, so neither workers nor a resume change what is drawn.
  std::function<Sample(Sample sample, std::uint64_t key)> transform = {};
};

// One way through the data, made by Loader::epoch. The batches come in the same order and with
// the same bits for every number of workers. May be dropped at any point: the destructor stops and
// joins the workers. For one consumer thread. A dataset's error reaches the consumer at the batch
// in which it happened, with its type and the example named; after it, the epoch is over.
class Epoch {
 public:
  ~Epoch();
  Epoch(Epoch&&) noexcept;
  Epoch& operator=(Epoch&&) noexcept;

  // The next batch, or nothing when the epoch is over. Waits for a worker where needed.
  std::optional<Batch> next();

  // For range-for. Advancing reads the next batch; one pass only.
  class Iterator {
   public:
    Iterator() = default;
    explicit Iterator(Epoch& epoch) : epoch_(&epoch), batch_(epoch.next()) {}
    Batch& operator*() { return *batch_; }
    Batch* operator->() { return &*batch_; }
    Iterator& operator++() {
      batch_.reset();  // its memory is free before the next one is waited for
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
  // Over the examples `indices` of a data set, or over all of it. Throws UsageError when an option
  // is below 1, an index is out of range, the sampler is of another number of examples, or not one
  // batch comes out.
  Loader(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices,
         LoaderOptions options);
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);

  // In an epoch, of this rank where there is a sampler. Examples are counted with the sampler's
  // padding and without what LastBatch::Drop leaves out.
  std::int64_t batches() const { return batches_from(0); }
  std::int64_t examples() const;

  // Starts reading epoch `epoch` at batch `first_batch` (0 <= first_batch <= batches(); for a
  // resumed run: the batches from there on are those of the uninterrupted epoch). The epoch keeps
  // the data set alive, not the loader. With one part alone the other one of each batch is undefined;
  // what is there has the same bits.
  Epoch epoch(std::int64_t epoch, std::int64_t first_batch = 0, Part part = Part::Both,
              Share share = {}) const;

  // Starts reading epoch `epoch` where `position` of its examples are done, counted over all ranks
  // (0 <= position <= the examples of all ranks): Batch::done of the last step. The others are
  // divided anew, over as many ranks and in as large batches as there are now, and each is read once
  // but for the sampler's padding; where both are as before, the batches are those of the
  // uninterrupted epoch.
  Epoch epoch_from(std::int64_t epoch, std::int64_t position, Part part = Part::Both) const;
  std::int64_t batches_from(std::int64_t position) const;

  // One batch of an epoch, 0 <= index < batches(), read by the caller itself.
  Batch read(std::int64_t epoch, std::int64_t index, Part part = Part::Both,
             Share share = {}) const;

  // The examples of an epoch in their order, this rank's where there is a sampler.
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
