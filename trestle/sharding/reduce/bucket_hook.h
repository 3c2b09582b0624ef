#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "trestle/comm/group.h"
#include "trestle/sharding/flat/flat_parameter_group.h"
#include "trestle/sharding/hooks/communication_hook.h"

namespace trestle::sharding {

// Averages buckets with the user's communication hook. An exception of the hook fails the
// communication of all ranks: they would wait for messages that this rank never sends.
class BucketHook {
 public:
  BucketHook(const CommunicationHook& hook, const comm::Group& ranks)
      : name_(hook.name), ranks_(ranks), average_(hook.make(ranks)) {}

  struct Place {
    int index = 0;  // in the order of reductions
    bool is_last = false;
    std::int64_t step = 0;
  };
  // Begins to average the group's gradients. Returns the function that waits for it, which may be
  // empty.
  std::function<void()> begin(FlatParameterGroup& group, const Place& place) const;
  void finish(int index, const std::function<void()>& wait) const;

 private:
  void call_hook(int index, const std::function<void()>& call) const;

  std::string name_;
  comm::Group ranks_;
  AverageBucket average_;
};

}  // namespace trestle::sharding
