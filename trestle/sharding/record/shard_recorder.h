#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "trestle/comm/work.h"
#include "trestle/sharding/record/shard_record.h"

namespace trestle::sharding {

// Writes a ShardRecord from any thread of the rank, or does nothing. Copies write to the same
// record.
class ShardRecorder {
 public:
  using What = ShardEvent::What;
  class Entry;

  static ShardRecorder start();

  bool is_on() const { return state_ != nullptr; }
  void set_step(std::int64_t step) const;
  // `work`: the event ends when it is done, if that is noticed before end().
  Entry begin(What what, int part, const comm::Work* work = nullptr) const;
  void look() const;  // notices works that are done
  ShardRecord take() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// An event that has begun. Without end() it is not in the record.
class ShardRecorder::Entry {
 public:
  void end();

 private:
  friend class ShardRecorder;
  std::shared_ptr<State> state_;
  std::size_t number_ = 0;
};

}  // namespace trestle::sharding
