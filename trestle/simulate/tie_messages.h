#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "trestle/schedule/schedule.h"
#include "trestle/simulate/costs.h"
#include "trestle/simulate/tie_places.h"

namespace trestle::simulate {

// The messages of tied parameters (TieCost) without a network.
class TieMessages {
 public:
  TieMessages(const schedule::Schedule& schedule, const Costs& costs);

  // The number of the tie whose gradient action `next` of the rank needs and that has not arrived,
  // if there is one. Otherwise raises `time` to the arrival of all that the action needs.
  std::optional<std::size_t> await(std::size_t rank, std::size_t next, double* time) const;

  // The ties whose gradients leave at the end of this action.
  std::vector<std::size_t> sent_by(std::size_t rank, std::size_t next, double end);

 private:
  struct Message {
    double value_arrives = 0;
    double seconds = 0;
    std::optional<double> gradient_arrives = {};
  };
  std::vector<TiePlaces> places_;  // one for each tie
  std::vector<Message> messages_;  // the same
};

}  // namespace trestle::simulate
