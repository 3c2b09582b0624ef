#include "trestle/nn/checkpointing.h"

#include <utility>

namespace trestle::nn {
namespace {

thread_local Checkpointing current = Checkpointing::None;

}  // namespace

Checkpointing checkpointing() { return current; }

CheckpointingScope::CheckpointingScope(Checkpointing run) : before_(std::exchange(current, run)) {}
CheckpointingScope::~CheckpointingScope() { current = before_; }

}  // namespace trestle::nn
