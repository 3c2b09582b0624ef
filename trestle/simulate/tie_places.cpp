#include "trestle/simulate/tie_places.h"

#include "trestle/schedule/action.h"
#include "trestle/schedule/routes.h"

namespace trestle::simulate {

using schedule::Action;
using schedule::Kind;

std::vector<TiePlaces> places_of_ties(const schedule::Schedule& schedule, const Costs& costs) {
  const std::size_t stages = costs.ties.empty() ? 0 : costs.stages.size();
  using Places = std::vector<std::optional<ActionPlace>>;
  Places unshards(stages), first_forwards(stages), last_backwards(stages);
  // [rank] its NORM, and its last compute action.
  Places norms(schedule.ranks.size()), ends(schedule.ranks.size());
  std::vector<bool> reduced(stages, false);
  for (std::size_t rank = 0; stages > 0 && rank < schedule.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      const ActionPlace here{rank, i};
      if (const auto forward = schedule::forward_in(action)) {
        auto& first = first_forwards[static_cast<std::size_t>(forward->stage)];
        if (!first) first = here;
      }
      if (const auto backward = schedule::backward_in(action))
        last_backwards[static_cast<std::size_t>(backward->stage)] = here;
      if (is_compute(action.kind)) ends[rank] = here;
      const auto stage = static_cast<std::size_t>(action.stage);
      if (action.kind == Kind::WeightGrad) last_backwards[stage] = here;
      if (action.kind == Kind::Norm) norms[rank] = here;
      if (action.kind == Kind::ReduceGrad) reduced[stage] = true;
      if (action.kind == Kind::Unshard) unshards[stage] = here;
    }
  }
  std::vector<TiePlaces> places;
  for (const TieCost& tie : costs.ties) {
    const auto owner = static_cast<std::size_t>(tie.owner);
    const auto copy = static_cast<std::size_t>(tie.copy);
    TiePlaces& own = places.emplace_back(
        TiePlaces{.owner_unshard = unshards.at(owner), .first_forward = first_forwards.at(copy)});
    if (tie.frozen) continue;
    own.last_backward = last_backwards.at(copy);
    const auto rank = static_cast<std::size_t>(schedule.rank_of_stage.at(owner));
    const bool early = reduced.at(owner) || last_backwards.at(owner) == ends.at(rank);
    own.taken = owner < copy && early ? last_backwards.at(owner) : norms.at(rank);
  }
  return places;
}

}  // namespace trestle::simulate
