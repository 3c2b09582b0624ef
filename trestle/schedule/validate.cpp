#include "trestle/schedule/validate.h"

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/grid.h"
#include "trestle/schedule/rendezvous.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/unit_times.h"

namespace trestle::schedule {
namespace {

using Way = Transfer::Way;

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule) {}

  void run() {
    check_frame();
    check_routes();
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
    if (schedule_.routes.empty()) {
      unit_times(schedule_);
    } else {
      check_rendezvous(schedule_);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what,
                         std::optional<GridCell> cell = std::nullopt) const {
    throw UsageError(
        text("schedule '", schedule_.name, "': ", what, "\n", format_grid(schedule_, cell)));
  }

  const std::vector<Action>& actions(int rank) const {
    return schedule_.ranks[static_cast<std::size_t>(rank)];
  }
  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  bool has_stage(int stage) const { return stage >= 0 && stage < schedule_.stages; }
  std::string name(const GridCell& cell) const { return to_string(actions(cell.rank)[cell.index]); }

  void check_frame() const {
    if (schedule_.stages < 1 || schedule_.micro_batches < 1 || schedule_.ranks.empty()) {
      fail(text("a table needs at least one stage, micro-batch and rank; this one has ",
                schedule_.stages, ", ", schedule_.micro_batches, " and ", schedule_.rank_count()));
    }
    if (schedule_.rank_of_stage.size() != static_cast<std::size_t>(schedule_.stages)) {
      fail(text("rank_of_stage has ", schedule_.rank_of_stage.size(), " entries for ",
                schedule_.stages, " stages"));
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const int rank = rank_of(stage);
      if (rank < 0 || rank >= schedule_.rank_count()) fail(text("stage ", stage, " is on no rank"));
    }
  }

  // Fills lanes_: the routes, or, where there are none yet, one between all neighbours.
  void check_routes() {
    lanes_ = schedule_.routes;
    std::set<int> main;
    for (const Route& route : lanes_) {
      const bool forward = has_stage(route.from_stage) && has_stage(route.to_stage) &&
                           route.from_stage < route.to_stage;
      if (!forward || (!route.skip && route.to_stage != route.from_stage + 1)) {
        fail(text("route '", route.name, "' cannot go from stage ", route.from_stage, " to stage ",
                  route.to_stage));
      }
      if (!route.skip && !main.insert(route.from_stage).second) {
        fail(text("two main routes leave stage ", route.from_stage));
      }
    }
    table_ = RouteTable(schedule_);
    if (lanes_.empty()) lanes_ = main_lane(schedule_.stages);
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
      if (!transfer) fail(text(name(cell), " has no route that it could travel on"), cell);
      if (within_rank(schedule_, route_of(*transfer))) {
        fail(text(name(cell), " stays within rank ", cell.rank,
                  ": there is nothing to send or receive"),
             cell);
      }
      record_transfer(cell, is_send(action.kind) ? &sends_ : &receives_, *transfer);
    } else if (is_compute(action.kind)) {
      record(cell, action.kind, action.stage, action.micro_batch);
    }
  }

  void check_place(const GridCell& cell, int stage) const {
    if (!has_stage(stage)) {
      fail(text(name(cell), " names stage ", stage, " of ", schedule_.stages), cell);
    }
    if (rank_of(stage) != cell.rank) {
      fail(text(name(cell), " is on rank ", cell.rank, ", but stage ", stage, " is on rank ",
                rank_of(stage)),
           cell);
    }
  }

  void check_range(const GridCell& cell, int micro_batch) const {
    if (micro_batch >= 0 && micro_batch < schedule_.micro_batches) return;
    fail(text(name(cell), " names micro-batch ", micro_batch, " of ", schedule_.micro_batches),
         cell);
  }

  void record(const GridCell& cell, Kind kind, int stage, int micro_batch) {
    check_range(cell, micro_batch);
    if (!cells_.emplace(std::tuple(kind, stage, micro_batch), cell).second) {
      fail(text(name(cell), " stands twice in the table"), cell);
    }
  }

  using Transfers = std::map<Transfer, GridCell>;
  void record_transfer(const GridCell& cell, Transfers* transfers, const Transfer& transfer) const {
    check_range(cell, transfer.micro_batch);
    if (!transfers->emplace(transfer, cell).second)
      fail(text(name(cell), " stands twice in the table"), cell);
  }

  const GridCell* find(Kind kind, int stage, int micro_batch) const {
    const auto found = cells_.find({kind, stage, micro_batch});
    return found == cells_.end() ? nullptr : &found->second;
  }
  // The action that makes the input gradient: B, or I where B is split.
  const GridCell* find_backward(int stage, int micro_batch) const {
    const GridCell* whole = find(Kind::Backward, stage, micro_batch);
    return whole != nullptr ? whole : find(Kind::InputGrad, stage, micro_batch);
  }

  void check_micro_batch(int stage, int micro_batch) const {
    const GridCell* forward = find(Kind::Forward, stage, micro_batch);
    const GridCell* whole = find(Kind::Backward, stage, micro_batch);
    const GridCell* input = find(Kind::InputGrad, stage, micro_batch);
    const GridCell* weight = find(Kind::WeightGrad, stage, micro_batch);
    const GridCell* again = find(Kind::Recompute, stage, micro_batch);
    const std::string of = text(" of micro-batch ", micro_batch, " on stage ", stage);
    if (forward == nullptr) fail(text("there is no forward", of));
    if (whole != nullptr && input != nullptr) fail(text("there are both a B and an I", of), *input);
    if (whole != nullptr && weight != nullptr)
      fail(text("there are both a B and a W", of), *weight);
    if (whole == nullptr && input == nullptr)
      fail(text("there is no backward", of), weight ? *weight : *forward);
    if (input != nullptr && weight == nullptr) fail(text("there is an I but no W", of), *input);
    const GridCell* backward = whole != nullptr ? whole : input;
    check_order(*forward, *backward);
    if (weight != nullptr) check_order(*input, *weight);
    if (again == nullptr) return;
    check_order(*forward, *again);
    check_order(*again, *backward);
  }

  // Both cells are of one stage, so of one rank.
  void check_order(const GridCell& first, const GridCell& second) const {
    if (first.index < second.index) return;
    fail(text(name(second), " comes before ", name(first), ", which it needs"), second);
  }

  const Route& route_of(const Transfer& transfer) const {
    return lanes_[static_cast<std::size_t>(transfer.route)];
  }

  void check_transfer(const Transfer& transfer) const {
    const Route& route = route_of(transfer);
    const bool activation = transfer.way == Way::Activation;
    const GridCell* makes = activation ? find(Kind::Forward, route.from_stage, transfer.micro_batch)
                                       : find_backward(route.to_stage, transfer.micro_batch);
    const GridCell* takes = activation ? find(Kind::Forward, route.to_stage, transfer.micro_batch)
                                       : find_backward(route.from_stage, transfer.micro_batch);
    if (makes == nullptr || takes == nullptr)
      return;  // check_micro_batch() has reported what is missing
    const GridCell& producer = *makes;
    const GridCell& consumer = *takes;
    if (within_rank(schedule_, route)) return check_order(producer, consumer);
    if (schedule_.routes.empty()) return;
    const auto send = sends_.find(transfer);
    const auto receive = receives_.find(transfer);
    const std::string send_name = to_string(send_of(lanes_, transfer));
    const std::string receive_name = to_string(receive_of(lanes_, transfer));
    if (send == sends_.end()) {
      if (receive == receives_.end()) {
        fail(text(name(consumer), " needs what ", name(producer), " makes, but there is no ",
                  send_name),
             producer);
      }
      fail(text(receive_name, " has no ", send_name), receive->second);
    }
    if (receive == receives_.end()) fail(text(send_name, " has no ", receive_name), send->second);
    check_order(producer, send->second);
    check_order(receive->second, consumer);
  }

  const Schedule& schedule_;
  std::vector<Route> lanes_;
  RouteTable table_{0, {}};                               // of the schedule's own routes
  std::map<std::tuple<Kind, int, int>, GridCell> cells_;  // by kind, stage, micro-batch
  Transfers sends_;
  Transfers receives_;
};

}  // namespace

void validate(const Schedule& schedule) { Checker(schedule).run(); }

bool all_forwards_first(const Schedule& schedule) {
  for (const auto& actions : schedule.ranks) {
    bool backward = false;
    for (const Action& action : actions) {
      if (backward && forward_in(action)) return false;
      // One overlapped pair already has a backward beside a forward.
      if (action.kind == Kind::OverlapForwardBackward) return false;
      backward = backward || backward_in(action).has_value();
    }
  }
  return true;
}

}  // namespace trestle::schedule
