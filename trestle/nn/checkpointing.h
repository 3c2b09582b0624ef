#pragma once

#include <cstdint>

// What a layer may ask about its own run, as torchgpipe's is_checkpointing() and is_recomputing().
namespace trestle::nn {

enum class Checkpointing : std::uint8_t {
  None,       // a run like any other: its graph is kept, or nobody needs one
  First,      // it will be run again: by a pipeline's recomputation, or inside of nn::checkpoint()
  Recompute,  // that second run, just before the backward
};

// Of the run in which the calling thread is.
//
//   if (checkpointing() != Checkpointing::Recompute) ++batches_seen;
Checkpointing checkpointing();

// In a first run: the number, in this thread, of the outermost call that will be run again, so that two layers know whether
// they will be run again together. 0 otherwise.
std::uint64_t checkpointed_call();

// The calling thread is in such a run while it lives.
class CheckpointingScope {
 public:
  explicit CheckpointingScope(Checkpointing run);
  ~CheckpointingScope();
  CheckpointingScope(const CheckpointingScope&) = delete;
  CheckpointingScope& operator=(const CheckpointingScope&) = delete;

 private:
  Checkpointing before_;
};

}  // namespace trestle::nn
