#include "trestle/simulate/tie_messages.h"

#include <algorithm>

namespace trestle::simulate {

TieMessages::TieMessages(const schedule::Schedule& schedule, const Costs& costs)
    : places_(places_of_ties(schedule, costs)) {
  for (const TieCost& tie : costs.ties)
    messages_.push_back(
        {.value_arrives =
             costs.stages.at(static_cast<std::size_t>(tie.owner)).unshard + tie.seconds,
         .seconds = tie.seconds});
}

std::optional<std::size_t> TieMessages::await(std::size_t rank, std::size_t next,
                                              double* time) const {
  const ActionPlace here{rank, next};
  for (std::size_t tie = 0; tie < messages_.size(); ++tie) {
    const Message& message = messages_[tie];
    if (places_[tie].first_forward == here) *time = std::max(*time, message.value_arrives);
    if (places_[tie].taken != here || !places_[tie].last_backward) continue;
    if (!message.gradient_arrives) return tie;
    *time = std::max(*time, *message.gradient_arrives);
  }
  return std::nullopt;
}

std::vector<std::size_t> TieMessages::sent_by(std::size_t rank, std::size_t next, double end) {
  std::vector<std::size_t> sent;
  for (std::size_t tie = 0; tie < messages_.size(); ++tie) {
    if (places_[tie].last_backward != ActionPlace{rank, next}) continue;
    messages_[tie].gradient_arrives = end + messages_[tie].seconds;
    sent.push_back(tie);
  }
  return sent;
}

}  // namespace trestle::simulate
