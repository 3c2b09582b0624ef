#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "trestle/comm/group.h"

namespace trestle::sharding {

// A message that ranks exchange at the beginning of each backward and, above level None, of each
// forward and unshard. It finds a rank that does something else, which would otherwise give wrong
// numbers or wait for the deadline. Backwards inside no_sync() begin the exchange and do not wait
// for it.
class RankHandshake {
 public:
  enum class Call : std::uint8_t {
    Backward,
    TrainingForward,
    Evaluation,  // a forward without gradients
    Unshard,
    State,  // state()
  };
  struct Content {
    Call call = Call::Backward;
    // The other fields are those of a backward.
    std::int64_t backward = 0;          // its number
    bool sync = true;                   // whether it is reduced
    std::optional<double> weight = {};  // of this rank
    std::uint32_t trained_hash = 0;     // of which parameters are trained
  };

  RankHandshake() = default;
  RankHandshake(const comm::Group& group, const Content& own);

  // Waits for all ranks' messages. Throws StateError that names a rank whose message differs.
  void check();
  // The sum of all ranks' weights, after check().
  double total_weight() const;

 private:
  comm::Group group_;
  Content own_;
  at::Tensor sent_, received_;
  comm::Work work_;
};

}  // namespace trestle::sharding
