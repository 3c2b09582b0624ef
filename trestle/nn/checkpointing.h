#pragma once

#include <cstdint>

// The kind of run that a layer is in, as torchgpipe's is_checkpointing() and is_recomputing().
namespace trestle::nn {

enum class Checkpointing : std::uint8_t {
  None,       // a plain run: its graph is kept, or none is needed
  First,      // will be recomputed: by a pipeline, or inside of nn::checkpoint()
  Recompute,  // the recomputation, just before the backward
};

// The kind of run that the calling thread is in.
//
//   if (checkpointing() != Checkpointing::Recompute) ++batches_seen;
Checkpointing checkpointing();

// In a first run: the number, in this thread, of the outermost call that will be recomputed. Two
// layers with the same number are recomputed together. 0 otherwise.
std::uint64_t checkpointed_call();

// Sets the calling thread's kind of run while it lives.
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
