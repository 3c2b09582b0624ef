#include "trestle/nn/checkpointing.h"

#include <utility>

namespace trestle::nn {
namespace {

thread_local Checkpointing current = Checkpointing::None;
thread_local std::uint64_t calls = 0;

}  // namespace

Checkpointing checkpointing() { return current; }

std::uint64_t checkpointed_call() { return current == Checkpointing::First ? calls : 0; }

CheckpointingScope::CheckpointingScope(Checkpointing run) : before_(std::exchange(current, run)) {
  if (before_ == Checkpointing::None && run == Checkpointing::First) ++calls;
}
CheckpointingScope::~CheckpointingScope() { current = before_; }

}  // namespace trestle::nn
