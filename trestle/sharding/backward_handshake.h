#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "trestle/comm/group.h"

namespace trestle::sharding {

// What ranks tell each other at the beginning of a backward, so that one that does something else is found by what it says
// and not by a wrong number, or by waiting. In no_sync() too: nobody waits for it there.
class BackwardHandshake {
 public:
  struct Content {
    std::int64_t backward = 0;       // which one it is
    bool sync = true;                // whether it is reduced
    std::optional<double> weight;    // of this rank
    std::uint32_t trained_hash = 0;  // of which parameters are trained
  };

  BackwardHandshake() = default;
  BackwardHandshake(const comm::Group& group, const Content& own);

  // Waits for the others'. Throws StateError where one differs, naming it.
  void check();
  // The sum of all ranks' weights; check() has been called.
  double total_weight() const;

 private:
  comm::Group group_;
  Content own_;
  at::Tensor sent_, headers_;
  comm::Work work_;
};

}  // namespace trestle::sharding
