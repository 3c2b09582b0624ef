#include "trestle/schedule/unit_times.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/table_error.h"
#include "trestle/schedule/walk_order.h"

namespace trestle::schedule {
namespace {

double unit_time(Kind kind) {
  switch (kind) {
    case Kind::Forward:
    case Kind::InputGrad:
    case Kind::WeightGrad:
    case Kind::Recompute:
      return 1;
    case Kind::Backward:
      return 2;
    case Kind::OverlapForwardBackward:
      return 3;
    default:
      return 0;
  }
}

class UnitTimeWalk {
 public:
  explicit UnitTimeWalk(const Schedule& schedule)
      : schedule_(schedule),
        routes_(schedule.routes.empty() ? main_lane(schedule.stages) : schedule.routes),
        table_(schedule.stages, routes_),
        cells_(static_cast<std::size_t>(schedule.stages) *
               static_cast<std::size_t>(schedule.micro_batches)),
        ends_(2 * cells_, not_yet),
        order_(schedule.ranks.size(), 2 * cells_) {}

  std::vector<std::vector<TimeSpan>> run() {
    spans_.resize(schedule_.ranks.size());
    for (std::size_t rank = 0; rank < spans_.size(); ++rank)
      spans_[rank].reserve(schedule_.ranks[rank].size());
    while (const auto rank = order_.next()) walk(static_cast<std::size_t>(*rank));
    for (std::size_t rank = 0; rank < spans_.size(); ++rank) {
      const std::size_t index = spans_[rank].size();
      if (index == schedule_.ranks[rank].size()) continue;
      stuck(rank, index);
    }
    return std::move(spans_);
  }

 private:
  static constexpr double not_yet = -1;

  // The items that actions wait for: the end of a forward, or of a backward.
  std::size_t forward_of(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }
  std::size_t backward_of(int stage, int micro_batch) const {
    return cells_ + forward_of(stage, micro_batch);
  }
  const Route& route(int index) const { return routes_[static_cast<std::size_t>(index)]; }

  // Raises `time` to the end of the item. Returns false, and lets the rank wait, if it has not
  // ended.
  bool await(std::size_t item, std::size_t rank, double* time) {
    *time = std::max(*time, ends_[item]);
    if (ends_[item] == not_yet) order_.wait(item, static_cast<int>(rank));
    return ends_[item] != not_yet;
  }

  bool await_inputs(const Action& action, std::size_t rank, double* time) {
    if (const auto cell = forward_in(action)) {
      for (const int index : table_.into(cell->stage)) {
        if (!await(forward_of(route(index).from_stage, cell->micro_batch), rank, time))
          return false;
      }
    }
    if (const auto cell = backward_in(action)) {
      for (const int index : table_.out_of(cell->stage)) {
        if (!await(backward_of(route(index).to_stage, cell->micro_batch), rank, time)) return false;
      }
    }
    return true;
  }

  [[noreturn]] void stuck(std::size_t rank, std::size_t index) const {
    const Action& action = schedule_.ranks[rank][index];
    throw TableError(
        schedule_,
        {.rule = text("rank ", rank, " gets stuck: ", to_string(action), " waits for ever for ",
                      missing_input(action)),
         .hint = "Order the rows so that on no two ranks an action waits for a later one of the "
                 "other rank.",
         .cell = GridCell{static_cast<int>(rank), index}});
  }

  // "the backward of micro-batch 0 on stage 1".
  std::string missing_input(const Action& action) const {
    const auto named = [](const char* what, int stage, int micro_batch) {
      return text("the ", what, " of micro-batch ", micro_batch, " on stage ", stage);
    };
    if (const auto cell = forward_in(action)) {
      for (const int index : table_.into(cell->stage)) {
        const int stage = route(index).from_stage;
        if (ends_[forward_of(stage, cell->micro_batch)] == not_yet)
          return named("forward", stage, cell->micro_batch);
      }
    }
    if (const auto cell = backward_in(action)) {
      for (const int index : table_.out_of(cell->stage)) {
        const int stage = route(index).to_stage;
        if (ends_[backward_of(stage, cell->micro_batch)] == not_yet)
          return named("backward", stage, cell->micro_batch);
      }
    }
    return "its input";
  }

  void finish(std::size_t item, double end) {
    ends_[item] = end;
    order_.wake(item);
  }

  // Runs the rank's actions until one must wait.
  void walk(std::size_t rank) {
    auto& spans = spans_[rank];
    while (spans.size() < schedule_.ranks[rank].size()) {
      const Action& action = schedule_.ranks[rank][spans.size()];
      double begin = spans.empty() ? 0 : spans.back().end;
      if (!await_inputs(action, rank, &begin)) return;
      const double end = begin + unit_time(action.kind);
      spans.push_back({begin, end});
      if (const auto cell = forward_in(action))
        finish(forward_of(cell->stage, cell->micro_batch), end);
      if (const auto cell = backward_in(action))
        finish(backward_of(cell->stage, cell->micro_batch), end);
    }
  }

  const Schedule& schedule_;
  std::vector<Route> routes_;
  RouteTable table_;
  std::size_t cells_;
  std::vector<double> ends_;  // all forwards, then all backwards
  WalkOrder order_;
  std::vector<std::vector<TimeSpan>> spans_;
};

}  // namespace

std::vector<std::vector<TimeSpan>> unit_times(const Schedule& schedule) {
  return UnitTimeWalk(schedule).run();
}

}  // namespace trestle::schedule
