#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

// What a Sharded did when, as one rank saw it: Sharded::start_recording(). shard_timeline.h
// (train/) makes a picture of it.
namespace trestle {

struct ShardEvent {
  enum class What : std::uint8_t {
    Forward,   // of a unit; of the whole model as unit -1
    Backward,  // the same
    Gather,    // of a flat group's parameters
    Reduce,    // of the gradients of a bucket, or of a flat group
    Wait,  // for the gathering of a unit; as -1 for all reductions of a backward, or all gathers after a step
  };
  What what = What::Forward;
  int part = -1;          // the number of the unit, bucket or flat group
  std::int64_t step = 0;  // reduced backwards before it
  // Seconds since the recording began. What goes on by itself begins when this rank asked for it
  // and ends when this rank saw that it was done: whenever it records something, and at the latest
  // when it waits for it.
  double begin = 0;
  double end = 0;
};

struct ShardRecord {
  std::vector<ShardEvent> events;  // in the order in which they began; without those that threw
  std::vector<std::string> units;  // their names, at level Parameters
  std::chrono::steady_clock::time_point begin;
};

// In how much of the time in which there was communication, gathers and reductions, this rank did
// not wait for it: 1 where all of it is hidden, 0 where none is, or nothing was sent.
double hidden_share(const ShardRecord& record);

}  // namespace trestle
