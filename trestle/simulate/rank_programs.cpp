#include "trestle/simulate/rank_programs.h"

#include <algorithm>
#include <utility>

namespace trestle::simulate {

using schedule::Action;
using schedule::Kind;
using schedule::Transfer;
using Way = Transfer::Way;

RankPrograms::RankPrograms(const schedule::Schedule& schedule, const Costs& costs,
                           MessageFlow& messages, CollectiveQueue& collectives)
    : schedule_(schedule),
      costs_(costs),
      routes_(schedule),
      times_(schedule, costs),
      messages_(messages),
      collectives_(collectives),
      ties_(places_of_ties(schedule, costs)),
      reductions_(costs.stages.size()) {}

std::vector<Step> RankPrograms::of_rank(int rank) {
  steps_.clear();
  rank_ = rank;
  const auto& row = schedule_.ranks[static_cast<std::size_t>(rank)];
  note_last_backwards(row);
  std::vector<Transfer> posted;  // each is taken just before the action that needs it
  std::vector<std::size_t> order;
  action_ = 0;
  if (!row.empty()) send_values_at_start();
  for (; action_ < row.size(); ++action_) {
    const Action& action = row[action_];
    if (is_receive(action.kind)) {
      if (const auto transfer = routes_.of(action)) posted.push_back(*transfer);
      continue;
    }
    take_inputs(action, posted, order);
    take_ties(order);
    add(action);
    send_ties();
  }
  messages_.expect(rank, order);
  return std::move(steps_);
}

const StageTraffic* RankPrograms::traffic(int stage) const {
  if (costs_.network->stages.empty()) return nullptr;
  return &costs_.network->stages[static_cast<std::size_t>(stage)];
}

void RankPrograms::push(Step::What what, std::size_t number, double seconds) {
  steps_.push_back({.what = what, .number = number, .seconds = seconds, .action = action_});
}

// The action of each stage that computes the last gradients of its weights.
void RankPrograms::note_last_backwards(const std::vector<Action>& row) {
  last_backward_.assign(costs_.stages.size(), row.size());
  for (std::size_t i = 0; i < row.size(); ++i)
    if (row[i].kind == Kind::Backward || row[i].kind == Kind::WeightGrad)
      last_backward_[static_cast<std::size_t>(row[i].stage)] = i;
}

void RankPrograms::take_inputs(const Action& action, std::vector<Transfer>& posted,
                               std::vector<std::size_t>& order) {
  const auto forward = forward_in(action), backward = backward_in(action);
  const auto needs = [&](const Transfer& transfer) {
    const auto& route = schedule_.routes[static_cast<std::size_t>(transfer.route)];
    const bool activation = transfer.way == Way::Activation;
    const auto& cell = activation ? forward : backward;
    return cell && cell->micro_batch == transfer.micro_batch &&
           cell->stage == (activation ? route.to_stage : route.from_stage);
  };
  std::erase_if(posted, [&](const Transfer& transfer) {
    if (!needs(transfer)) return false;
    order.push_back(messages_.place(transfer));
    push(Step::What::Take, order.back());
    return true;
  });
  // The messages that were taken, and the values that this rank made itself.
  const auto have = [&](const std::vector<int>& routes, int micro_batch, Way way) {
    for (const int route : routes)
      push(Step::What::Have,
           messages_.place({.route = route, .micro_batch = micro_batch, .way = way}));
  };
  if (forward) have(routes_.into(forward->stage), forward->micro_batch, Way::Activation);
  if (backward) have(routes_.out_of(backward->stage), backward->micro_batch, Way::Gradient);
}

void RankPrograms::send_tie(std::size_t tie, Way way) {
  push(Step::What::SendTie, messages_.place(messages_.tie_transfer(tie, way)));
}

void RankPrograms::send_values_at_start() {
  for (std::size_t tie = 0; tie < ties_.size(); ++tie) {
    const auto owner = static_cast<std::size_t>(costs_.ties[tie].owner);
    if (!ties_[tie].owner_unshard && schedule_.rank_of_stage[owner] == rank_)
      send_tie(tie, Way::Activation);
  }
}

void RankPrograms::send_ties() {
  const ActionPlace here{static_cast<std::size_t>(rank_), action_};
  for (std::size_t tie = 0; tie < ties_.size(); ++tie) {
    if (ties_[tie].owner_unshard == here) send_tie(tie, Way::Activation);
    if (ties_[tie].last_backward == here && ties_[tie].taken) send_tie(tie, Way::Gradient);
  }
}

void RankPrograms::take_ties(std::vector<std::size_t>& order) {
  const ActionPlace here{static_cast<std::size_t>(rank_), action_};
  const auto take = [&](std::size_t tie, Way way) {
    const Transfer transfer = messages_.tie_transfer(tie, way);
    const std::size_t place = messages_.place(transfer);
    if (messages_.within_rank(transfer)) return push(Step::What::Have, place);
    order.push_back(place);
    push(Step::What::Take, place);
  };
  for (std::size_t tie = 0; tie < ties_.size(); ++tie) {
    if (ties_[tie].first_forward == here) take(tie, Way::Activation);
    if (ties_[tie].taken == here && ties_[tie].last_backward) take(tie, Way::Gradient);
  }
}

void RankPrograms::add(const Action& action) {
  if (action.kind == Kind::Step) push(Step::What::AwaitNorms);
  push(Step::What::BeginAction);
  const StageTraffic* const own = traffic(action.stage);
  const double seconds = times_.of(action);
  if (own == nullptr)
    push(Step::What::Compute, 0, seconds);
  else if (action.kind == Kind::Unshard)
    unshard(*own, action, seconds);
  else if (action.kind == Kind::ReduceGrad)
    reduce(*own, action, seconds);
  else
    compute(*own, action, seconds);
  push(Step::What::EndAction);
}

std::size_t RankPrograms::collective(const Collective& cost, CollectiveQueue::Kind kind,
                                     const Action& action) {
  return collectives_.add(cost, action.stage, kind, action, rank_);
}

void RankPrograms::unshard(const StageTraffic& own, const Action& action, double seconds) {
  std::vector<std::size_t> begun;
  for (const Collective& one : own.unshard) {
    begun.push_back(collective(one, CollectiveQueue::Kind::Gather, action));
    push(Step::What::Start, begun.back());
  }
  for (const std::size_t one : begun) push(Step::What::Wait, one);
  push(Step::What::Compute, 0, seconds);
}

void RankPrograms::reduce(const StageTraffic& own, const Action& action, double seconds) {
  while (start_reduction(own, action)) {
  }  // those of a stage without a backward
  auto& begun = reductions_[static_cast<std::size_t>(action.stage)];
  begun.push_back(collective(own.end, CollectiveQueue::Kind::Reduce, action));
  push(Step::What::Start, begun.back());
  for (const std::size_t one : begun) push(Step::What::Wait, one);
  push(Step::What::Compute, 0, seconds);
}

// Returns false if the stage has no more buckets.
bool RankPrograms::start_reduction(const StageTraffic& own, Action action) {
  auto& begun = reductions_[static_cast<std::size_t>(action.stage)];
  if (begun.size() >= own.buckets.size()) return false;
  const auto most = static_cast<std::size_t>(own.most_in_flight);
  if (most > 0 && begun.size() >= most) push(Step::What::Wait, begun[begun.size() - most]);
  action.kind = Kind::ReduceGrad;
  action.micro_batch = -1;
  begun.push_back(
      collective(own.buckets[begun.size()].reduce, CollectiveQueue::Kind::Reduce, action));
  push(Step::What::Start, begun.back());
  return true;
}

// Computes `seconds` in the stage's units, each of which gathers its parameters while the one
// before computes. In the last backward the reductions begin as their gradients are there.
void RankPrograms::compute(const StageTraffic& own, const Action& action, double seconds) {
  const bool backwards = action.kind == Kind::Backward || action.kind == Kind::InputGrad;
  const bool gathers = backwards || action.kind == Kind::Forward || action.kind == Kind::Recompute;
  const bool last = last_backward_[static_cast<std::size_t>(action.stage)] == action_;
  const std::size_t units = gathers ? own.units.size() : 0;
  std::vector<std::size_t> gather;
  for (std::size_t i = 0; i < units; ++i)
    gather.push_back(collective(own.units[backwards ? units - 1 - i : i].gather,
                                CollectiveQueue::Kind::Gather, action));
  if (units > 0) push(Step::What::Start, gather[0]);
  double done = 0;  // share of `seconds`
  for (std::size_t i = 0; i < std::max<std::size_t>(units, 1); ++i) {
    double end = 1;
    if (units > 0) {
      if (i + 1 < units) push(Step::What::Start, gather[i + 1]);
      push(Step::What::Wait, gather[i]);
      const GatheredUnit& unit = own.units[backwards ? units - 1 - i : i];
      end = i + 1 == units ? 1 : std::min(1.0, done + (backwards ? unit.backward : unit.forward));
    }
    if (last) done = start_ready_reductions(own, action, seconds, done, end);
    push(Step::What::Compute, 0, (end - done) * seconds);
    done = end;
    if (last && end == 1) start_ready_reductions(own, action, seconds, 1, 1);
  }
}

// Computes up to each reduction that can begin before the share `end`, and begins it. Returns the
// share that is then done.
double RankPrograms::start_ready_reductions(const StageTraffic& own, const Action& action,
                                            double seconds, double done, double end) {
  const auto& begun = reductions_[static_cast<std::size_t>(action.stage)];
  while (begun.size() < own.buckets.size() && own.buckets[begun.size()].ready <= end) {
    const double ready = std::max(done, own.buckets[begun.size()].ready);
    if (ready == 1 && done < 1) break;  // the rest of the action comes first
    push(Step::What::Compute, 0, (ready - done) * seconds);
    done = ready;
    start_reduction(own, action);
  }
  return done;
}

}  // namespace trestle::simulate
