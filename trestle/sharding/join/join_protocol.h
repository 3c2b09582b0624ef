#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/join/join_options.h"

namespace trestle::sharding {

// The messages of join(). A rank is *active* while it has batches, and *shadowing* afterwards.
// Before each operation that needs all ranks, every rank sends a message: an active rank announces
// its operation, a shadowing rank sends Ended and then takes part in the operation of the active
// ranks.
class JoinProtocol {
 public:
  enum class Step : std::uint8_t { Ended, Forward, TrainingForward, Backward, UnreducedBackward };
  // The state of a gradient of earlier backwards. An optimizer steps a parameter whose gradient
  // is zero, by momentum or decay, and skips one without a gradient.
  enum class Earlier : std::uint8_t { Kept, Zeroed, None };
  struct Message {
    Step step = Step::Ended;
    int model = 0;                      // its number in the join
    bool weighted = false;              // the backward has a weight
    std::vector<Earlier> earlier = {};  // one for each gradient of the model
  };

  // `plan`: a hash of the models and options. `gradients`: the largest number of gradients of a
  // model.
  JoinProtocol(comm::Group group, std::uint32_t plan, std::size_t gradients,
               const JoinOptions& options)
      : group_(group.with_check(comm::Check::Off)),
        plan_(plan),
        gradients_(gradients),
        options_(options) {}

  // Sends this rank's message to all ranks and waits for theirs. Returns the message of the active
  // ranks, or Ended if there are none. Throws StateError, on all ranks, where active ranks announce
  // different operations.
  Message exchange(const Message& own);
  // The first active rank, when there was one last.
  int first_active_rank() const { return first_active_rank_; }

  // From now on this rank sends only Ended.
  void begin_shadowing() { shadows_ = true; }
  bool shadows() const { return shadows_; }
  const JoinOptions& options() const { return options_; }
  bool threw_for_first_end() const { return threw_for_first_end_; }

 private:
  std::vector<std::int64_t> encode(const Message& message) const;
  Message decode(const std::int64_t* values) const;
  void check_same_plan(const std::int64_t* received, std::size_t fields) const;
  [[noreturn]] void throw_for_first_end(int ended, int active, const Message& message);
  int world_rank(int rank) const { return group_.ranks().at(static_cast<std::size_t>(rank)); }

  comm::Group group_;
  std::uint32_t plan_;
  std::size_t gradients_;
  JoinOptions options_;
  int first_active_rank_ = 0;
  bool shadows_ = false;
  bool threw_for_first_end_ = false;
};

}  // namespace trestle::sharding
