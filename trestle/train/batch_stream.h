#pragma once

#include <optional>

#include "trestle/data/loader.h"

namespace trestle::train {

// The batches of an epoch: a rank reads the part that it needs. A rank that needs nothing counts
// the batches, so that all ranks make the same steps.
class BatchStream {
 public:
  BatchStream(const data::Loader& loader, std::int64_t epoch, std::int64_t first_batch,
              std::optional<data::Part> part, data::Share share = {})
      : next_(first_batch), end_(loader.batches()) {
    if (part) epoch_.emplace(loader.epoch(epoch, first_batch, *part, share));
  }

  // Nothing at the end of the epoch; batches that are only counted have no tensors.
  std::optional<data::Batch> next() {
    if (epoch_) return epoch_->next();
    if (next_ == end_) return std::nullopt;
    return data::Batch{.inputs = {}, .targets = {}, .names = {}, .index = next_++};
  }

 private:
  std::int64_t next_, end_;
  std::optional<data::Epoch> epoch_;
};

}  // namespace trestle::train
