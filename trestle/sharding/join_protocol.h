#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/join.h"

namespace trestle::sharding {

// What ranks with uneven numbers of batches tell each other before each thing that all must take part in.
class JoinProtocol {
 public:
  enum class Step : std::uint8_t { Ended, Forward, TrainingForward, Backward, UnreducedBackward };
  // What has become of a gradient of earlier backwards. An optimizer steps a parameter whose gradient is zero, by momentum or
  // decay, and passes over one without.
  enum class Earlier : std::uint8_t { Kept, Zeroed, None };
  struct Word {
    Step step = Step::Ended;
    int model = 0;                      // its number in the join
    bool weighted = false;              // the backward has a weight
    std::vector<Earlier> earlier = {};  // each of the model's gradients
  };

  // `plan`: a number of the models and options, which all ranks have alike. `gradients`: the most that a model has.
  JoinProtocol(comm::Group group, std::uint32_t plan, std::size_t gradients,
               const JoinOptions& options)
      : group_(group.with_check(comm::Check::Off)),
        plan_(plan),
        gradients_(gradients),
        options_(options) {}

  // Says what this rank is about to do, and returns what those with batches are: Ended where there are none. Waits for
  // all. Throws StateError, on all ranks, where they do different things.
  Word say(const Word& own);
  // The first of the ranks that had batches when one had any last.
  int first_rank() const { return first_rank_; }

  // From here on this rank follows the others, and says nothing but Ended.
  void follow() { follows_ = true; }
  bool follows() const { return follows_; }
  const JoinOptions& options() const { return options_; }
  bool threw_for_first_end() const { return threw_for_first_end_; }

 private:
  comm::Group group_;
  std::uint32_t plan_;
  std::size_t gradients_;
  JoinOptions options_;
  int first_rank_ = 0;
  bool follows_ = false;
  bool threw_for_first_end_ = false;
};

}  // namespace trestle::sharding
