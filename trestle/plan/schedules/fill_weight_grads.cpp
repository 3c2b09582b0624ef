#include "trestle/plan/schedules/fill_weight_grads.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <utility>

#include "trestle/schedule/routes.h"

namespace trestle::plan {
namespace {

using schedule::Action;
using schedule::Cell;
using schedule::Kind;

constexpr double unknown = -1;

// Runs the ranks in the order of their times, and decides when each W runs.
class Filling {
 public:
  Filling(const schedule::Schedule& order, const std::vector<schedule::Route>& routes,
          const simulate::Costs& costs, const FillOptions& options)
      : order_(order),
        routes_(routes),
        table_(order.stages, routes),
        costs_(costs),
        options_(options) {
    const auto cells =
        static_cast<std::size_t>(order.stages) * static_cast<std::size_t>(order.micro_batches);
    forward_end_.assign(cells, unknown);
    backward_end_.assign(cells, unknown);
    waiting_.resize(2 * cells);
    for (const auto& row : order.ranks) ranks_.push_back({.row = computations(row)});
  }

  FilledSchedule run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) queue_.emplace(0.0, rank);
    while (!queue_.empty()) {
      const auto [time, rank] = queue_.top();
      queue_.pop();
      last_ = std::max(last_, time);
      advance(rank, time);
    }
    schedule::Schedule filled = order_;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      filled.ranks[rank] =
          options_.joins ? joined(ranks_[rank].done) : std::move(ranks_[rank].done);
    return {.table = std::move(filled), .seconds = last_};
  }

 private:
  struct Rank {
    std::vector<Action> row;  // F and I
    std::size_t next = 0;
    std::deque<Action> weights = {};  // W that can run, oldest first
    Bytes kept = 0;                   // of activations
    std::vector<Action> done = {};
  };

  static std::vector<Action> computations(const std::vector<Action>& row) {
    std::vector<Action> result;
    for (const Action& action : row) {
      if (const auto cell = forward_in(action))
        result.push_back(schedule::forward(cell->stage, cell->micro_batch));
      if (const auto cell = backward_in(action))
        result.push_back(schedule::input_grad(cell->stage, cell->micro_batch));
    }
    return result;
  }

  const simulate::StageCost& cost(const Action& action) const {
    return costs_.stages[static_cast<std::size_t>(action.stage)];
  }
  double seconds(const Action& action) const {
    return action.kind == Kind::Forward ? cost(action).forward : cost(action).input_grad;
  }
  std::size_t cell(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(order_.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }

  // When the inputs of F or I are there; `unknown` if what makes them has not begun. `missing` is
  // then that action's place among those that ranks wait for, and `least` its seconds.
  struct Ready {
    double time = 0;
    std::size_t missing = 0;
    double least = 0;
  };
  Ready ready(const Action& action) const {
    Ready result;
    const bool forward = action.kind == Kind::Forward;
    const auto& ends = forward ? forward_end_ : backward_end_;
    const auto need = [&](int stage, double end, double travels, bool is_forward) {
      if (end != unknown) {
        if (result.time != unknown) result.time = std::max(result.time, end + travels);
        return;
      }
      const auto& other = costs_.stages[static_cast<std::size_t>(stage)];
      result = {.time = unknown,
                .missing = 2 * cell(stage, action.micro_batch) + (is_forward ? 0 : 1),
                .least = (is_forward ? other.forward : other.input_grad) + travels};
    };
    for (const int route : forward ? table_.into(action.stage) : table_.out_of(action.stage)) {
      const auto number = static_cast<std::size_t>(route);
      const int stage = forward ? routes_[number].from_stage : routes_[number].to_stage;
      const bool within = schedule::within_rank(order_.rank_of_stage, routes_[number]);
      const double travels = within || costs_.routes.empty() ? 0 : costs_.routes[number].seconds;
      need(stage, ends[cell(stage, action.micro_batch)], travels, forward);
    }
    if (!forward) need(action.stage, forward_end_[cell(action.stage, action.micro_batch)], 0, true);
    return result;
  }

  void run_weight(std::size_t number, double time) {
    Rank& rank = ranks_[number];
    const Action weight = rank.weights.front();
    rank.weights.pop_front();
    rank.done.push_back(weight);
    rank.kept -= cost(weight).kept_for_weights.value_or(cost(weight).saved);
    queue_.emplace(time + cost(weight).weight_grad, number);
  }

  bool is_full(const Rank& rank, const Action& forward) const {
    return options_.activations > 0 && forward.kind == Kind::Forward && !rank.weights.empty() &&
           rank.kept + cost(forward).saved > options_.activations;
  }

  void advance(std::size_t number, double time) {
    Rank& rank = ranks_[number];
    if (rank.next == rank.row.size()) {
      if (!rank.weights.empty()) run_weight(number, time);
      return;
    }
    const Action& action = rank.row[rank.next];
    if (is_full(rank, action)) return run_weight(number, time);
    const Ready inputs = ready(action);
    const double idle = inputs.time == unknown ? inputs.least : inputs.time - time;
    if (!rank.weights.empty() &&
        cost(rank.weights.front()).weight_grad * (1 - options_.patience) <= idle && idle > 0)
      return run_weight(number, time);
    if (inputs.time == unknown) {
      waiting_[inputs.missing].emplace_back(time, number);
      return;
    }
    if (inputs.time > time) {
      queue_.emplace(inputs.time, number);
      return;
    }
    begin(number, action, time);
  }

  void begin(std::size_t number, const Action& action, double time) {
    Rank& rank = ranks_[number];
    const double end = time + seconds(action);
    const std::size_t at = cell(action.stage, action.micro_batch);
    const bool forward = action.kind == Kind::Forward;
    (forward ? forward_end_ : backward_end_)[at] = end;
    rank.done.push_back(action);
    if (forward) {
      rank.kept += cost(action).saved;
    } else {
      rank.weights.push_back(schedule::weight_grad(action.stage, action.micro_batch));
      rank.kept += cost(action).kept_for_weights.value_or(cost(action).saved) - cost(action).saved;
    }
    ++rank.next;
    queue_.emplace(end, number);
    for (const auto& [since, other] : std::exchange(waiting_[2 * at + (forward ? 0 : 1)], {}))
      queue_.emplace(std::max(since, time), other);
  }

  // I with its own W behind it becomes B.
  std::vector<Action> joined(const std::vector<Action>& row) const {
    std::vector<Action> result;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool pair = row[i].kind == Kind::InputGrad && i + 1 < row.size() &&
                        row[i + 1].kind == Kind::WeightGrad && row[i + 1].stage == row[i].stage &&
                        row[i + 1].micro_batch == row[i].micro_batch;
      const bool faster =
          cost(row[i]).backward <= cost(row[i]).input_grad + cost(row[i]).weight_grad;
      result.push_back(pair && faster ? schedule::backward(row[i].stage, row[i].micro_batch)
                                      : row[i]);
      if (pair && faster) ++i;
    }
    return result;
  }

  const schedule::Schedule& order_;
  const std::vector<schedule::Route>& routes_;
  const schedule::RouteTable table_;
  const simulate::Costs& costs_;
  const FillOptions options_;
  std::vector<double> forward_end_, backward_end_;  // [cell] of F and of I, once it has begun
  std::vector<std::vector<std::pair<double, std::size_t>>> waiting_;  // [2 x cell + is I] ranks
  std::vector<Rank> ranks_;
  double last_ = 0;
  // (time, rank): each rank is here once, or waits for an action that has not begun.
  std::priority_queue<std::pair<double, std::size_t>, std::vector<std::pair<double, std::size_t>>,
                      std::greater<>>
      queue_;
};

}  // namespace

FilledSchedule fill_weight_grads(const schedule::Schedule& order,
                                 const std::vector<schedule::Route>& routes,
                                 const simulate::Costs& costs, const FillOptions& options) {
  return Filling(order, routes, costs, options).run();
}

}  // namespace trestle::plan
