#include "trestle/schedule/validate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/text.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/schedule/rendezvous.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/table_error.h"
#include "trestle/schedule/unit_times.h"

namespace trestle::schedule {
namespace {

using Way = Transfer::Way;

constexpr const char* each_micro_batch =
    "Give each stage for each micro-batch one F, and one B or one I with one W.";

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule) {}

  void run() {
    check_frame();
    check_routes();
    prepare_tables();
    for (int rank = 0; rank < schedule_.rank_count(); ++rank) {
      for (std::size_t index = 0; index < actions(rank).size(); ++index) check_cell({rank, index});
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (int i = 0; i < schedule_.micro_batches; ++i) check_micro_batch(stage, i);
    }
    for (std::size_t route = 0; route < lanes_.size(); ++route) {
      for (int i = 0; i < schedule_.micro_batches; ++i) {
        check_transfer({static_cast<int>(route), i, Way::Activation});
        check_transfer({static_cast<int>(route), i, Way::Gradient});
      }
    }
    check_optimizer_steps(schedule_);
    if (schedule_.routes.empty()) {
      unit_times(schedule_);
    } else {
      check_rendezvous(schedule_);
    }
  }

 private:
  [[noreturn]] void fail(const Fault& fault) const { throw TableError(schedule_, fault); }

  const std::vector<Action>& actions(int rank) const {
    return schedule_.ranks[static_cast<std::size_t>(rank)];
  }
  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  bool has_stage(int stage) const { return stage >= 0 && stage < schedule_.stages; }
  std::string name(const GridCell& cell) const { return to_string(actions(cell.rank)[cell.index]); }

  // The first cell that acts for such a stage and micro-batch (-1 in an action without one).
  template <class Matches>
  std::optional<GridCell> first_cell(const Matches& matches) const {
    for (int rank = 0; rank < schedule_.rank_count(); ++rank) {
      for (std::size_t index = 0; index < actions(rank).size(); ++index) {
        const Action& action = actions(rank)[index];
        if (matches(action.stage, action.micro_batch) ||
            matches(action.partner_stage, action.partner_micro_batch))
          return GridCell{rank, index};
      }
    }
    return std::nullopt;
  }

  // The cell is one that needs the forward: an action of its micro-batch on its stage, or else the
  // first of this micro-batch or a later one.
  [[noreturn]] void lacks_forward(int stage, int micro_batch) const {
    auto cell = first_cell([&](int s, int i) { return s == stage && i == micro_batch; });
    if (!cell) cell = first_cell([&](int, int i) { return i >= micro_batch; });
    fail({.rule = text("there is no forward of micro-batch ", micro_batch, " on stage ", stage),
          .hint = each_micro_batch,
          .cell = cell});
  }

  void check_frame() const {
    if (schedule_.stages < 1 || schedule_.micro_batches < 1 || schedule_.ranks.empty()) {
      fail({.rule = text("a table needs at least one stage, micro-batch and rank; this one has ",
                         schedule_.stages, ", ", schedule_.micro_batches, " and ",
                         schedule_.rank_count()),
            .hint = "Give each rank a row with its actions, such as 0F0,0B0."});
    }
    if (schedule_.rank_of_stage.size() != static_cast<std::size_t>(schedule_.stages)) {
      fail({.rule = text("rank_of_stage has ", schedule_.rank_of_stage.size(), " entries for ",
                         schedule_.stages, " stages"),
            .hint = "Give it the rank of each stage."});
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const int rank = rank_of(stage);
      if (rank >= 0 && rank < schedule_.rank_count()) continue;
      fail({.rule = text("stage ", stage, " is on no rank"),
            .hint = text("Add the row with stage ", stage, ", or number the stages without a gap."),
            .cell = first_cell([&](int of, int) { return of > stage; })});
    }
  }

  // Fills lanes_ with the routes, or with a main lane if there are none.
  void check_routes() {
    lanes_ = schedule_.routes;
    std::set<int> main;
    for (const Route& route : lanes_) {
      const bool forward = has_stage(route.from_stage) && has_stage(route.to_stage) &&
                           route.from_stage < route.to_stage;
      if (!forward || (!route.skip && route.to_stage != route.from_stage + 1)) {
        fail({.rule = text("route '", printable(route.name, 60), "' cannot go from stage ",
                           route.from_stage, " to stage ", route.to_stage),
              .hint = text("A main route goes to the next stage, a skip to any later one; the last "
                           "is ",
                           schedule_.stages - 1, ".")});
      }
      if (!route.skip && !main.insert(route.from_stage).second) {
        fail({.rule = text("two main routes leave stage ", route.from_stage),
              .hint = "Keep one of them."});
      }
    }
    table_ = RouteTable(schedule_);
    if (lanes_.empty()) lanes_ = main_lane(schedule_.stages);
  }

  // Allocates an entry for every possible action. A much smaller table must lack a forward, which
  // is reported before the allocation.
  void prepare_tables() {
    std::size_t all = 0;
    for (const auto& of_rank : schedule_.ranks) all += of_rank.size();
    const std::size_t cells = static_cast<std::size_t>(schedule_.stages) *
                              static_cast<std::size_t>(schedule_.micro_batches);
    constexpr std::size_t spare = 1024;
    if (cells > all + spare) check_forwards();
    cells_.assign(cells * compute_kinds, no_index);
    if (schedule_.routes.empty()) return;
    sends_.assign(lanes_.size() * static_cast<std::size_t>(schedule_.micro_batches) * 2, no_index);
    receives_ = sends_;
  }

  void check_forwards() const {
    std::set<std::pair<int, int>> forwards;  // stage, micro-batch
    for (int rank = 0; rank < schedule_.rank_count(); ++rank) {
      for (std::size_t index = 0; index < actions(rank).size(); ++index) {
        const auto found = forward_in(actions(rank)[index]);
        if (!found) continue;
        check_place({rank, index}, found->stage);
        check_range({rank, index}, found->micro_batch);
        if (!forwards.emplace(found->stage, found->micro_batch).second)
          fail_twice({rank, index}, forward(found->stage, found->micro_batch));
      }
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (int i = 0; i < schedule_.micro_batches; ++i) {
        if (!forwards.contains({stage, i})) lacks_forward(stage, i);
      }
    }
  }

  void check_cell(const GridCell& cell) {
    const Action& action = actions(cell.rank)[cell.index];
    check_place(cell, action.stage);
    if (action.kind == Kind::OverlapForwardBackward) {
      check_place(cell, action.partner_stage);
      record(cell, Kind::Forward, action.stage, action.micro_batch);
      record(cell, Kind::Backward, action.partner_stage, action.partner_micro_batch);
    } else if (is_send(action.kind) || is_receive(action.kind)) {
      const auto transfer = table_.of(action);
      if (!transfer) {
        fail({.rule = text(name(cell), " has no route"),
              .hint = text("SEND_F and RECV_B need a next stage, SEND_B and RECV_F a previous one, "
                           "and a skip a #route line; the stages are 0 to ",
                           schedule_.stages - 1, "."),
              .cell = cell});
      }
      if (within_rank(schedule_, route_of(*transfer))) {
        fail({.rule = text(name(cell), " stays within rank ", cell.rank,
                           ": there is nothing to send or receive"),
              .hint = "Remove the transfers between the stages of one rank.",
              .cell = cell});
      }
      record_transfer(cell, is_send(action.kind) ? &sends_ : &receives_, *transfer);
    } else if (is_compute(action.kind)) {
      record(cell, action.kind, action.stage, action.micro_batch);
    }
  }

  void check_place(const GridCell& cell, int stage) const {
    if (!has_stage(stage)) {
      fail({.rule = text(name(cell), " names stage ", stage, " of ", schedule_.stages),
            .hint = text("The stages are 0 to ", schedule_.stages - 1, "."),
            .cell = cell});
    }
    if (rank_of(stage) != cell.rank) {
      fail({.rule = text(name(cell), " is on rank ", cell.rank, ", but stage ", stage,
                         " is on rank ", rank_of(stage)),
            .hint = "Put all actions of a stage into the row of one rank.",
            .cell = cell});
    }
  }

  void check_range(const GridCell& cell, int micro_batch) const {
    if (micro_batch >= 0 && micro_batch < schedule_.micro_batches) return;
    fail({.rule =
              text(name(cell), " names micro-batch ", micro_batch, " of ", schedule_.micro_batches),
          .hint = text("The micro-batches are 0 to ", schedule_.micro_batches - 1, "."),
          .cell = cell});
  }

  void record(const GridCell& cell, Kind kind, int stage, int micro_batch) {
    check_range(cell, micro_batch);
    put(cell, {.kind = kind, .stage = static_cast<std::int16_t>(stage), .micro_batch = micro_batch},
        &cells_[place(kind, stage, micro_batch)]);
  }

  // The index of an action in its rank's list; no_index if it is not in the table.
  using Index = std::uint32_t;
  static constexpr Index no_index = std::numeric_limits<Index>::max();

  void record_transfer(const GridCell& cell, std::vector<Index>* indices,
                       const Transfer& transfer) const {
    check_range(cell, transfer.micro_batch);
    put(cell, actions(cell.rank)[cell.index], &(*indices)[place(transfer)]);
  }

  // An overlapped pair repeats one of its two actions.
  [[noreturn]] void fail_twice(const GridCell& cell, const Action& action) const {
    fail({.rule = text(to_string(action), " occurs twice in the table"),
          .hint = "Remove one of the two.",
          .cell = cell});
  }

  void put(const GridCell& cell, const Action& action, Index* index) const {
    if (*index != no_index) fail_twice(cell, action);
    *index = static_cast<Index>(cell.index);
  }

  static constexpr std::size_t compute_kinds = 5;  // F, B, I, W and R come first in Kind
  std::size_t place(Kind kind, int stage, int micro_batch) const {
    const auto cell =
        static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
        static_cast<std::size_t>(micro_batch);
    return cell * compute_kinds + static_cast<std::size_t>(kind);
  }
  std::size_t place(const Transfer& transfer) const {
    const auto message = static_cast<std::size_t>(transfer.route) *
                             static_cast<std::size_t>(schedule_.micro_batches) +
                         static_cast<std::size_t>(transfer.micro_batch);
    return message * 2 + (transfer.way == Way::Gradient ? 1 : 0);
  }

  std::optional<GridCell> cell_of(Index index, int stage) const {
    if (index == no_index) return std::nullopt;
    return GridCell{rank_of(stage), index};
  }
  std::optional<GridCell> find(Kind kind, int stage, int micro_batch) const {
    return cell_of(cells_[place(kind, stage, micro_batch)], stage);
  }
  // The action that computes the input gradient: B, or I if B is split.
  std::optional<GridCell> find_backward(int stage, int micro_batch) const {
    const auto whole = find(Kind::Backward, stage, micro_batch);
    return whole ? whole : find(Kind::InputGrad, stage, micro_batch);
  }

  void check_micro_batch(int stage, int micro_batch) const {
    const auto forward = find(Kind::Forward, stage, micro_batch);
    const auto whole = find(Kind::Backward, stage, micro_batch);
    const auto input = find(Kind::InputGrad, stage, micro_batch);
    const auto weight = find(Kind::WeightGrad, stage, micro_batch);
    const auto again = find(Kind::Recompute, stage, micro_batch);
    const auto refuse = [&](const char* what, const std::optional<GridCell>& cell) {
      fail({.rule = text("there ", what, " of micro-batch ", micro_batch, " on stage ", stage),
            .hint = each_micro_batch,
            .cell = cell});
    };
    if (!forward) lacks_forward(stage, micro_batch);
    if (whole && input) refuse("are both a B and an I", input);
    if (whole && weight) refuse("are both a B and a W", weight);
    if (!whole && !input && !weight) refuse("is no backward", forward);
    if (weight && !whole && !input) refuse("is a W but no I", weight);
    if (input && !weight) refuse("is an I but no W", input);
    const GridCell& backward = whole ? *whole : *input;
    check_order(*forward, backward);
    if (weight) check_order(*input, *weight);
    if (!again) return;
    check_order(*forward, *again);
    check_order(*again, backward);
  }

  // Both cells are of one stage, therefore of one rank.
  void check_order(const GridCell& first, const GridCell& second) const {
    if (first.index < second.index) return;
    fail({.rule = text(name(second), " comes before ", name(first), ", which it needs"),
          .hint = text("Put ", name(second), " behind ", name(first), "."),
          .cell = second});
  }

  const Route& route_of(const Transfer& transfer) const {
    return lanes_[static_cast<std::size_t>(transfer.route)];
  }

  void check_transfer(const Transfer& transfer) const {
    const Route& route = route_of(transfer);
    const int i = transfer.micro_batch;
    const bool activation = transfer.way == Way::Activation;
    const auto producer =
        activation ? find(Kind::Forward, route.from_stage, i) : find_backward(route.to_stage, i);
    const auto consumer =
        activation ? find(Kind::Forward, route.to_stage, i) : find_backward(route.from_stage, i);
    if (!producer || !consumer) return;  // check_micro_batch() has reported what is missing
    if (within_rank(schedule_, route)) return check_order(*producer, *consumer);
    if (schedule_.routes.empty()) return;
    const auto send = cell_of(sends_[place(transfer)], producer_stage(transfer));
    const auto receive = cell_of(receives_[place(transfer)], consumer_stage(transfer));
    if (!send || !receive) miss_end(transfer, send, receive);
    check_order(*producer, *send);
    check_order(*receive, *consumer);
  }

  int producer_stage(const Transfer& transfer) const {
    const Route& route = route_of(transfer);
    return transfer.way == Way::Activation ? route.from_stage : route.to_stage;
  }
  int consumer_stage(const Transfer& transfer) const {
    const Route& route = route_of(transfer);
    return transfer.way == Way::Activation ? route.to_stage : route.from_stage;
  }

  [[noreturn]] void miss_end(const Transfer& transfer, const std::optional<GridCell>& send,
                             const std::optional<GridCell>& receive) const {
    const std::string send_name = to_string(send_of(lanes_, transfer));
    const std::string receive_name = to_string(receive_of(lanes_, transfer));
    const std::string add_send =
        text("Add ", send_name, " to rank ", rank_of(producer_stage(transfer)));
    const std::string add_receive =
        text(receive_name, " to rank ", rank_of(consumer_stage(transfer)));
    if (send) {
      fail({.rule = text(send_name, " has no ", receive_name),
            .hint = text("Add ", add_receive, "."),
            .cell = send});
    }
    if (receive) {
      fail({.rule = text(receive_name, " has no ", send_name),
            .hint = add_send + ".",
            .cell = receive});
    }
    const bool activation = transfer.way == Way::Activation;
    const auto made = [&](int stage) {
      return activation ? *find(Kind::Forward, stage, transfer.micro_batch)
                        : *find_backward(stage, transfer.micro_batch);
    };
    const GridCell producer = made(producer_stage(transfer));
    fail({.rule = text(name(made(consumer_stage(transfer))), " needs what ", name(producer),
                       " produces, but there is no ", send_name),
          .hint = text(add_send, " and ", add_receive, "."),
          .cell = producer});
  }

  const Schedule& schedule_;
  std::vector<Route> lanes_;
  RouteTable table_{0, {}};   // of the schedule's routes
  std::vector<Index> cells_;  // by stage, micro-batch and kind
  std::vector<Index> sends_;  // by route, micro-batch and direction
  std::vector<Index> receives_;
};

}  // namespace

void validate(const Schedule& schedule) { Checker(schedule).run(); }

bool splits_backward(const Schedule& schedule) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [](const auto& row) {
    return std::any_of(row.begin(), row.end(),
                       [](const Action& action) { return action.kind == Kind::InputGrad; });
  });
}

bool is_for_pipelines(Kind kind) { return is_compute(kind) && kind != Kind::Recompute; }

void validate_for_pipelines(const Schedule& schedule) {
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i)
      if (const Action& action = schedule.ranks[rank][i]; !is_for_pipelines(action.kind))
        throw TableError(
            schedule,
            {.rule = text("a pipeline takes no ", to_string(action), " from a table"),
             .hint = "Leave it out. A table has F, B, I, W and overlapped pairs; the pipeline adds "
                     "sends, receives, recomputation, reductions, norms and steps.",
             .cell = GridCell{static_cast<int>(rank), i}});
  validate(schedule);
}

bool all_forwards_first(const Schedule& schedule) {
  for (const auto& actions : schedule.ranks) {
    bool backward = false;
    for (const Action& action : actions) {
      if (backward && forward_in(action)) return false;
      // An overlapped pair has a backward beside a forward.
      if (action.kind == Kind::OverlapForwardBackward) return false;
      backward = backward || backward_in(action).has_value();
    }
  }
  return true;
}

}  // namespace trestle::schedule
