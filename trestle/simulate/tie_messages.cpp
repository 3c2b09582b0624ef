#include "trestle/simulate/tie_messages.h"

#include <algorithm>

#include "trestle/schedule/action.h"
#include "trestle/schedule/routes.h"

namespace trestle::simulate {

using schedule::Action;
using schedule::Kind;

TieMessages::TieMessages(const schedule::Schedule& schedule, const Costs& costs) {
  const std::size_t stages = costs.ties.empty() ? 0 : costs.stages.size();
  std::vector<std::optional<Place>> first_forwards(stages), last_backwards(stages), norms(stages);
  for (std::size_t rank = 0; stages > 0 && rank < schedule.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      const Place here{rank, i};
      if (const auto forward = schedule::forward_in(action)) {
        auto& first = first_forwards[static_cast<std::size_t>(forward->stage)];
        if (!first) first = here;
      }
      if (const auto backward = schedule::backward_in(action))
        last_backwards[static_cast<std::size_t>(backward->stage)] = here;
      if (action.kind == Kind::WeightGrad)
        last_backwards[static_cast<std::size_t>(action.stage)] = here;
      if (action.kind == Kind::Norm) norms[static_cast<std::size_t>(action.stage)] = here;
    }
  }
  for (const TieCost& tie : costs.ties) {
    const auto owner = static_cast<std::size_t>(tie.owner);
    const auto copy = static_cast<std::size_t>(tie.copy);
    const auto taken = owner < copy ? last_backwards.at(owner) : norms.at(owner);
    messages_.push_back({.first_forward = first_forwards.at(copy),
                         .last_backward = tie.frozen ? std::nullopt : last_backwards.at(copy),
                         .taken = tie.frozen ? std::nullopt : taken,
                         .value_arrives = costs.stages.at(owner).unshard + tie.seconds,
                         .seconds = tie.seconds});
  }
}

std::optional<std::size_t> TieMessages::await(std::size_t rank, std::size_t next,
                                              double* time) const {
  const Place here{rank, next};
  for (std::size_t tie = 0; tie < messages_.size(); ++tie) {
    const Message& message = messages_[tie];
    if (message.first_forward == here) *time = std::max(*time, message.value_arrives);
    if (message.taken != here || !message.last_backward) continue;
    if (!message.gradient_arrives) return tie;
    *time = std::max(*time, *message.gradient_arrives);
  }
  return std::nullopt;
}

std::vector<std::size_t> TieMessages::sent_by(std::size_t rank, std::size_t next, double end) {
  std::vector<std::size_t> sent;
  for (std::size_t tie = 0; tie < messages_.size(); ++tie) {
    if (messages_[tie].last_backward != Place{rank, next}) continue;
    messages_[tie].gradient_arrives = end + messages_[tie].seconds;
    sent.push_back(tie);
  }
  return sent;
}

}  // namespace trestle::simulate
