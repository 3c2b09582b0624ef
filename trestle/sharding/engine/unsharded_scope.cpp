#include "trestle/sharding/engine/unsharded_scope.h"

#include <exception>
#include <utility>

#include "trestle/sharding/engine/shard_engine.h"

namespace trestle::sharding {

UnshardedScope::UnshardedScope(const std::shared_ptr<ShardEngine>& engine) : engine_(engine) {
  engine->unshard();
}

UnshardedScope::UnshardedScope(UnshardedScope&& other) noexcept
    : engine_(std::exchange(other.engine_, {})) {}

UnshardedScope::~UnshardedScope() {
  const auto engine = engine_.lock();
  if (!engine) return;
  try {
    engine->reshard();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // Communication failed. Its next use throws the reason.
  }
}

}  // namespace trestle::sharding
