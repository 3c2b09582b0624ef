#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "trestle/comm/work.h"
#include "trestle/sharding/shard_record.h"

namespace trestle::sharding {

// Writes a record down, from any thread of the rank, or does nothing. A copy writes to the same
// one.
class ShardRecorder {
 public:
  using What = ShardEvent::What;
  class Entry;

  static ShardRecorder start();

  bool is_on() const { return state_ != nullptr; }
  void set_step(std::int64_t step) const;
  // `work`: what ends it, where that is seen before end().
  Entry begin(What what, int part, const comm::Work* work = nullptr) const;
  void look() const;  // whether what goes on by itself has ended
  ShardRecord take() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Of one that was begun; dropped without end() it is not in the record.
class ShardRecorder::Entry {
 public:
  void end();

 private:
  friend class ShardRecorder;
  std::shared_ptr<State> state_;
  std::size_t number_ = 0;
};

}  // namespace trestle::sharding
