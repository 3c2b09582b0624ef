#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "trestle/schedule/schedule.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// The messages of tied parameters (TieCost) in a lowered schedule, which has no actions for them.
class TieMessages {
 public:
  TieMessages(const schedule::Schedule& schedule, const Costs& costs);

  // The number of the tie whose gradient action `next` of the rank needs and that has not arrived,
  // if there is one. Otherwise raises `time` to the arrival of all that the action needs.
  std::optional<std::size_t> await(std::size_t rank, std::size_t next, double* time) const;

  // The ties whose gradients leave at the end of this action.
  std::vector<std::size_t> sent_by(std::size_t rank, std::size_t next, double end);

 private:
  struct Place {
    std::size_t rank = 0, action = 0;
    bool operator==(const Place&) const = default;
  };
  struct Message {
    std::optional<Place> first_forward;  // of the copy's stage
    std::optional<Place> last_backward;  // the same
    std::optional<Place> taken;          // the action that needs the gradient
    double value_arrives = 0;
    double seconds = 0;
    std::optional<double> gradient_arrives = {};
  };
  std::vector<Message> messages_;  // one for each tie
};

}  // namespace trestle::simulate
