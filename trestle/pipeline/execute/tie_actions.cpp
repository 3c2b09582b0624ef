#include "trestle/pipeline/execute/tie_actions.h"

#include <map>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::pipeline {
namespace {

using schedule::Action;
using schedule::Kind;

Action tie_action(const Cut& cut, std::size_t tie, Kind kind, int stage) {
  return {.kind = kind,
          .stage = static_cast<std::int16_t>(stage),
          .micro_batch = 0,
          .route = static_cast<std::int16_t>(cut.routes.size() + tie)};
}

int tie_of(const Cut& cut, const Action& action) {
  return action.route - static_cast<int>(cut.routes.size());
}

// The places of one rank's row to which messages of ties are added.
class TiePlaces {
 public:
  // `last_kind`: what accumulates a split backward's gradients, I or W.
  TiePlaces(const std::vector<Action>& row, Kind last_kind) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const int stage = row[i].stage;
      if (row[i].kind == Kind::Unshard) unshard_.try_emplace(stage, i + 1);
      if (row[i].kind == Kind::Forward) first_forward_.try_emplace(stage, i);
      if (row[i].kind == Kind::Backward || row[i].kind == last_kind) last_backward_[stage] = i;
      if (row[i].kind == Kind::Norm) end_ = i;
      if (row[i].kind == Kind::ReduceGrad) reduced_.insert(stage);
      if (schedule::is_compute(row[i].kind)) last_compute_ = i;
    }
    if (end_ == none) end_ = row.size();
  }

  // Each is the number of actions before the place.
  std::size_t value_sent(int stage) const { return find(unshard_, stage, 0); }
  std::size_t value_received(int stage) const { return find(first_forward_, stage, 0); }
  std::size_t gradient_sent(int stage) const { return find(last_backward_, stage, end_ - 1) + 1; }
  std::size_t gradient_received(const schedule::Route& tie) const {
    const std::size_t own = find(last_backward_, tie.from_stage, end_);
    const bool early = reduced_.contains(tie.from_stage) || own == last_compute_;
    return early && tie.from_stage < tie.to_stage ? own : end_;
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  static std::size_t find(const std::map<int, std::size_t>& places, int stage, std::size_t other) {
    const auto found = places.find(stage);
    return found == places.end() ? other : found->second;
  }

  std::map<int, std::size_t> unshard_, first_forward_, last_backward_;  // by stage
  std::set<int> reduced_;
  std::size_t last_compute_ = none, end_ = none;
};

}  // namespace

std::vector<schedule::Route> message_routes(const Cut& cut) {
  std::vector<schedule::Route> routes = cut.routes;
  for (const StageTie& tie : cut.ties) routes.push_back(tie.route);
  return routes;
}

const schedule::Route& route_of(const Cut& cut, const Transfer& transfer) {
  const auto number = static_cast<std::size_t>(transfer.route);
  return number < cut.routes.size() ? cut.routes[number]
                                    : cut.ties.at(number - cut.routes.size()).route;
}

bool is_tie(const Cut& cut, const Action& action) {
  return action.route >= static_cast<int>(cut.routes.size());
}

Transfer tie_transfer(const Action& action) {
  const bool value = action.kind == Kind::SendSkip || action.kind == Kind::RecvSkip;
  return {.route = action.route,
          .way = value ? Transfer::Way::Activation : Transfer::Way::Gradient};
}

std::vector<Action> with_ties(const MiniBatchState& state, int rank, Phase phase,
                              const std::vector<Action>& row) {
  const Cut& cut = state.cut;
  if (cut.ties.empty()) return row;
  const TiePlaces places(row, state.whole_in_input_grad() ? Kind::InputGrad : Kind::WeightGrad);
  std::multimap<std::size_t, Action> added;  // equal places: in the order of insertion
  for (std::size_t i = 0; i < cut.ties.size(); ++i) {
    const schedule::Route& tie = cut.ties[i].route;
    const auto here = [&](int stage) { return state.table().rank_of_stage[stage] == rank; };
    const auto add = [&](std::size_t place, Kind kind, int stage) {
      added.emplace(place, tie_action(cut, i, kind, stage));
    };
    if (phase != Phase::Backward) {
      if (here(tie.from_stage))
        add(places.value_sent(tie.from_stage), Kind::SendSkip, tie.from_stage);
      if (here(tie.to_stage))
        add(places.value_received(tie.to_stage), Kind::RecvSkip, tie.to_stage);
    }
    if (phase == Phase::Forward || state.inputs.evaluating) continue;
    if (here(tie.to_stage))
      add(places.gradient_sent(tie.to_stage), Kind::SendSkipGradient, tie.to_stage);
    if (here(tie.from_stage))
      add(places.gradient_received(tie), Kind::RecvSkipGradient, tie.from_stage);
  }
  std::vector<Action> result;
  auto next = added.begin();
  for (std::size_t i = 0; i <= row.size(); ++i) {
    for (; next != added.end() && next->first == i; ++next) result.push_back(next->second);
    if (i < row.size()) result.push_back(row[i]);
  }
  return result;
}

void run_tie(MiniBatchState& state, const Action& action) {
  const int tie = tie_of(state.cut, action);
  const Transfer transfer = tie_transfer(action);
  TiedCopies& ties = *state.inputs.ties;
  const at::Device device = state.stages[action.stage].device();
  switch (action.kind) {
    case Kind::SendSkip: {
      const auto& hooks = state.inputs.hooks;
      const at::Tensor& owner = ties.owner(tie);
      const at::Tensor whole = hooks ? hooks->value_for_copies(action.stage, owner) : owner;
      return state.transport->send(transfer, ties.value(tie, whole), device);
    }
    case Kind::RecvSkip:
      return ties.take_value(
          tie, state.transport->receive(transfer, device),
          state.inputs.evaluating ? TiedCopies::Use::Evaluation : TiedCopies::Use::Training);
    case Kind::SendSkipGradient:
      return state.transport->send(transfer, ties.gradient(tie), device);
    default:
      return ties.add_gradient(tie, state.transport->receive(transfer, device));
  }
}

}  // namespace trestle::pipeline
