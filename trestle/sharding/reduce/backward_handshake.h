#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "trestle/comm/group.h"

namespace trestle::sharding {

// A message that ranks exchange at the beginning of each backward. It finds a rank that does
// something else, which would otherwise give wrong numbers or wait forever. Inside no_sync() the
// exchange is begun and not waited for.
class BackwardHandshake {
 public:
  struct Content {
    std::int64_t backward = 0;       // its number
    bool sync = true;                // whether it is reduced
    std::optional<double> weight;    // of this rank
    std::uint32_t trained_hash = 0;  // of which parameters are trained
  };

  BackwardHandshake() = default;
  BackwardHandshake(const comm::Group& group, const Content& own);

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
