#include "trestle/simulate/action_times.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::simulate {

using schedule::Action;
using schedule::Kind;

ActionTimes::ActionTimes(const schedule::Schedule& schedule, const Costs& costs)
    : schedule_(schedule),
      costs_(costs),
      recomputed_(static_cast<std::size_t>(schedule.stages) *
                      static_cast<std::size_t>(schedule.micro_batches),
                  false) {
  for (const auto& actions : schedule_.ranks) {
    for (const Action& action : actions) {
      check_range(action);
      if (action.kind == Kind::Recompute)
        recomputed_[cell(action.stage, action.micro_batch)] = true;
      if (action.kind == Kind::Norm) ++norms_;
    }
  }
}

std::size_t ActionTimes::cell(int stage, int micro_batch) const {
  return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
         static_cast<std::size_t>(micro_batch);
}

void ActionTimes::check_range(const Action& action) const {
  const auto holds = [&](int stage, int micro_batch) {
    return stage >= 0 && stage < schedule_.stages && micro_batch < schedule_.micro_batches;
  };
  const bool numbered = is_compute(action.kind) || is_send(action.kind) || is_receive(action.kind);
  const bool overlap = action.kind == Kind::OverlapForwardBackward;
  if (holds(action.stage, action.micro_batch) && !(numbered && action.micro_batch < 0) &&
      (!overlap || (holds(action.partner_stage, action.partner_micro_batch) &&
                    action.partner_micro_batch >= 0)))
    return;
  throw UsageError(text("schedule '", schedule_.name, "': ", to_string(action), " is outside of ",
                        schedule_.stages, " stages and ", schedule_.micro_batches,
                        " micro-batches"));
}

double ActionTimes::norm(int stage) const {
  const int rank = schedule_.rank_of_stage[static_cast<std::size_t>(stage)];
  double all = 0;
  for (std::size_t s = 0; s < costs_.stages.size(); ++s)
    if (schedule_.rank_of_stage[s] == rank) all += costs_.stages[s].norm;
  return all;
}

double ActionTimes::of(const Action& action) const {
  const StageCost& cost = costs_.stages[static_cast<std::size_t>(action.stage)];
  const double time = own(action, cost);
  return action.threads > 0 ? time / cost.lent_speed_up : time;
}

double ActionTimes::own(const Action& action, const StageCost& cost) const {
  switch (action.kind) {
    case Kind::Forward:
      return recomputed_[cell(action.stage, action.micro_batch)] ? cost.forward_no_graph
                                                                 : cost.forward;
    case Kind::Backward:
      return cost.backward;
    case Kind::InputGrad:
      return cost.input_grad;
    case Kind::WeightGrad:
      return cost.weight_grad;
    case Kind::Recompute:
      return cost.recompute;
    case Kind::OverlapForwardBackward:  // simulated one after the other
      return cost.forward + costs_.stages[static_cast<std::size_t>(action.partner_stage)].backward;
    case Kind::Norm:
      return norm(action.stage);
    case Kind::Step:
      return cost.step;
    case Kind::Unshard:
      return cost.unshard;
    case Kind::ReduceGrad:
      return cost.reduce;
    default:
      return 0;
  }
}

}  // namespace trestle::simulate
