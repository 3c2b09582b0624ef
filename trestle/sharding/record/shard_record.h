#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

// When a Sharded computed and communicated, on one rank: Sharded::start_recording().
// shard_timeline.h (train/) draws it.
namespace trestle {

struct ShardEvent {
  enum class What : std::uint8_t {
    Forward,   // of a unit; -1: of the whole model
    Backward,  // the same
    Gather,    // of a flat group's parameters
    Reduce,    // of the gradients of a bucket or flat group
    // For the gather of a unit; -1: for all reductions of a backward, or all gathers after a step.
    Wait,
  };
  What what = What::Forward;
  int part = -1;          // the number of the unit, bucket or flat group
  std::int64_t step = 0;  // the number of reduced backwards before it
  // Seconds since the recording began. Communication begins when this rank starts it. It ends when
  // this rank notices that it is done: at the next event, and at the latest when it waits for it.
  double begin = 0;
  double end = 0;
};

struct ShardRecord {
  std::vector<ShardEvent> events;  // in the order of their begins; without those that threw
  std::vector<std::string> units;  // their names, at level Parameters
  std::chrono::steady_clock::time_point begin;
};

// The share of the communication time (gathers and reductions) in which this rank did not wait: 1
// if all of it is hidden, 0 if none is or nothing was sent.
double hidden_share(const ShardRecord& record);

}  // namespace trestle
