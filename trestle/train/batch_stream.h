#pragma once

#include <optional>

#include "trestle/data/loader.h"

namespace trestle::train {

// One way through an epoch's batches: the part that a rank needs is read; a rank that needs none only
// counts them, so that all ranks make the same steps.
class BatchStream {
 public:
  BatchStream(const data::Loader& loader, std::int64_t epoch, std::int64_t first_batch,
              std::optional<data::Part> part, data::Share share = {})
      : next_(first_batch), end_(loader.batches()) {
    if (part) epoch_.emplace(loader.epoch(epoch, first_batch, *part, share));
  }

  // Nothing when the epoch is over; without tensors where they are only counted.
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
