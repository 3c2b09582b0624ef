#pragma once

#include <memory>

namespace trestle::sharding {

class ShardEngine;

// While it lives, a sharded model's parameters are whole. Sharded::unshard() and
// ShardedParameters::unsharded() return it.
class UnshardedScope {
 public:
  explicit UnshardedScope(const std::shared_ptr<ShardEngine>& engine);
  ~UnshardedScope();
  UnshardedScope(UnshardedScope&& other) noexcept;
  UnshardedScope& operator=(UnshardedScope&&) = delete;

 private:
  std::weak_ptr<ShardEngine> engine_;
};

}  // namespace trestle::sharding
