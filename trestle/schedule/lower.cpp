#include "trestle/schedule/lower.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/unit_times.h"
#include "trestle/schedule/validate.h"

namespace trestle::schedule {
namespace {

using Way = Transfer::Way;

struct NamedMode {
  std::string_view name;
  Recompute mode;
};
constexpr std::array recompute_modes = {NamedMode{"never", Recompute::Never},
                                        NamedMode{"except_last", Recompute::ExceptLast},
                                        NamedMode{"always", Recompute::Always}};

void check_routes(const Schedule& schedule, const std::vector<Route>& routes) {
  std::vector<int> main_routes(static_cast<std::size_t>(schedule.stages), 0);  // out of each stage
  for (const Route& route : routes) {
    const bool later = route.from_stage >= 0 && route.from_stage < route.to_stage &&
                       route.to_stage < schedule.stages;
    if (!later || (!route.skip && route.to_stage != route.from_stage + 1)) {
      throw UsageError(
          text(route.skip ? "skip" : "route", " '", route.name, "' goes from stage ",
               route.from_stage, " to stage ", route.to_stage, " of ", schedule.stages),
          {.hint = route.skip ? "A skip goes from one stage to a later one."
                              : "The main lane goes from a stage to the next."});
    }
    if (!route.skip && ++main_routes[static_cast<std::size_t>(route.from_stage)] > 1)
      throw UsageError(text("two main routes leave stage ", route.from_stage));
  }
  constexpr std::size_t most_routes = std::numeric_limits<decltype(Action::route)>::max();
  if (routes.size() > most_routes) {
    throw UsageError(text(routes.size(), " routes exceed the limit"),
                     {.hint = text("A schedule has at most ", most_routes, ".")});
  }
}

void check_lowering(const Schedule& schedule, const LowerOptions& options) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (!is_send(action.kind) && !is_receive(action.kind) && action.kind != Kind::Recompute)
        continue;
      throw UsageError(text("schedule '", schedule.name, "' is lowered already: it contains ",
                            to_string(action)),
                       {.hint = "Pass a table of compute actions to lower()."});
    }
  }
  if (options.routes) check_routes(schedule, *options.routes);
  if (!options.recompute.empty() && options.recompute.size() != stages) {
    throw UsageError(
        text("recompute has ", options.recompute.size(), " entries for ", stages, " stages"),
        {.hint = "Give one for each stage, or leave it empty."});
  }
}

// Inserts each R right before its backward. A stage then holds two recomputed graphs only if the
// schedule delays a W.
void insert_recompute(Schedule* schedule, const std::vector<Recompute>& modes) {
  if (modes.empty()) return;
  for (auto& actions : schedule->ranks) {
    std::vector<int> last(static_cast<std::size_t>(schedule->stages), -1);
    for (const Action& action : actions) {
      if (const auto cell = forward_in(action))
        last[static_cast<std::size_t>(cell->stage)] = cell->micro_batch;
    }
    std::vector<Action> longer;
    for (const Action& action : actions) {
      if (const auto cell = backward_in(action)) {
        const auto stage = static_cast<std::size_t>(cell->stage);
        const bool exempt =
            modes[stage] == Recompute::ExceptLast && cell->micro_batch == last[stage];
        if (modes[stage] != Recompute::Never && !exempt) {
          longer.push_back({.kind = Kind::Recompute,
                            .stage = static_cast<std::int16_t>(cell->stage),
                            .micro_batch = cell->micro_batch});
        }
      }
      longer.push_back(action);
    }
    actions = std::move(longer);
  }
}

// All ranks put their transfers into one common order, by time. Every rank's list is a part of it,
// so the first pending transfer can always run, even where sends block. A transfer comes before the
// compute actions that begin at its time; recomputations wait for nothing and are added to each
// rank's list afterwards. At one time just-in-time sends come first, then activations, then
// gradients from the front of the pipeline to its end. Each rank thus sends what is ready before it
// receives what an R can precede.
struct Placed {
  double time = 0;
  std::uint64_t order = 0;  // at one time: just in time or not, way, sender, micro-batch, route

  friend auto operator<=>(const Placed&, const Placed&) = default;
};

// The bits of Placed::order, from the highest. A schedule has at most 2^15 stages and routes.
constexpr int route_bits = 15, micro_batch_bits = 31, stage_bits = 15;
constexpr int sender_at = route_bits + micro_batch_bits;
constexpr int way_at = sender_at + stage_bits;
constexpr std::uint64_t bit(int at) { return std::uint64_t{1} << at; }

Placed placed(double time, bool just_in_time, const Transfer& transfer, int sender) {
  return {time, (just_in_time ? 0 : bit(way_at + 1)) |
                    (transfer.way == Way::Gradient ? bit(way_at) : 0) |
                    static_cast<std::uint64_t>(sender) << sender_at |
                    static_cast<std::uint64_t>(transfer.micro_batch) << route_bits |
                    static_cast<std::uint64_t>(transfer.route)};
}

Transfer transfer_in(const Placed& placed) {
  const auto low = [&](int from, int bits) {
    return static_cast<int>(placed.order >> from & (bit(bits) - 1));
  };
  return {.route = low(0, route_bits),
          .micro_batch = low(route_bits, micro_batch_bits),
          .way = low(way_at, 1) == 1 ? Way::Gradient : Way::Activation};
}

class Placement {
 public:
  Placement(const Schedule& schedule, SkipSend skip_send)
      : schedule_(schedule),
        skip_send_(skip_send),
        times_(unit_times(schedule)),
        forwards_(static_cast<std::size_t>(schedule.stages) *
                  static_cast<std::size_t>(schedule.micro_batches)),
        backwards_(forwards_.size()) {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (std::size_t index = 0; index < schedule_.ranks[rank].size(); ++index) {
        const Action& action = schedule_.ranks[rank][index];
        const TimeSpan span = times_[rank][index];
        if (const auto cell = forward_in(action))
          forwards_[place_in(cell->stage, cell->micro_batch)] = span;
        if (const auto cell = backward_in(action))
          backwards_[place_in(cell->stage, cell->micro_batch)] = span;
      }
    }
  }

  std::vector<std::vector<Action>> ranks() const {
    std::vector<std::vector<int>> routes(schedule_.ranks.size());
    for (std::size_t at = 0; at < schedule_.routes.size(); ++at) {
      const Route& route = schedule_.routes[at];
      if (within_rank(schedule_, route)) continue;
      routes[rank_of(route.from_stage)].push_back(static_cast<int>(at));
      routes[rank_of(route.to_stage)].push_back(static_cast<int>(at));
    }
    std::vector<std::vector<Action>> merged;
    for (std::size_t rank = 0; rank < routes.size(); ++rank)
      merged.push_back(merge(rank, transfers_of(routes[rank])));
    return merged;
  }

 private:
  // In order. Each route's transfers mostly are already, so a sort that merges is quick.
  std::vector<Placed> transfers_of(const std::vector<int>& routes) const {
    std::vector<Placed> transfers;
    transfers.reserve(2 * routes.size() * static_cast<std::size_t>(schedule_.micro_batches));
    for (const int route : routes)
      for (const Way way : {Way::Activation, Way::Gradient})
        for (int i = 0; i < schedule_.micro_batches; ++i)
          transfers.push_back(place_of({.route = route, .micro_batch = i, .way = way}));
    std::stable_sort(transfers.begin(), transfers.end());
    return transfers;
  }

  std::size_t place_in(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }

  std::size_t rank_of(int stage) const {
    return static_cast<std::size_t>(schedule_.rank_of_stage[static_cast<std::size_t>(stage)]);
  }

  Placed place_of(const Transfer& transfer) const {
    const Route& route = schedule_.routes[static_cast<std::size_t>(transfer.route)];
    const int i = transfer.micro_batch;
    if (transfer.way == Way::Gradient)
      return placed(backwards_[place_in(route.to_stage, i)].end, false, transfer, route.to_stage);
    const double made = forwards_[place_in(route.from_stage, i)].end;
    if (!route.skip || skip_send_ == SkipSend::Eager)
      return placed(made, false, transfer, route.from_stage);
    // The latest position that does not delay the consumer: the consumer's begin, or the begin of
    // the producer rank's action that is running then.
    const double needed = forwards_[place_in(route.to_stage, i)].begin;
    const auto& spans = times_[rank_of(route.from_stage)];
    auto after =
        std::lower_bound(spans.begin(), spans.end(), needed,
                         [](const TimeSpan& span, double time) { return span.begin < time; });
    if (after != spans.begin()) {
      const TimeSpan& running = *std::prev(after);
      if (running.begin >= made && needed < running.end)
        return placed(running.begin, true, transfer, route.from_stage);
    }
    return placed(needed, false, transfer, route.from_stage);
  }

  // The rank's half of a transfer.
  Action half_of(const Placed& placed, std::size_t rank) const {
    const Transfer transfer = transfer_in(placed);
    const Action send = send_of(schedule_.routes, transfer);
    return rank_of(send.stage) == rank ? send : receive_of(schedule_.routes, transfer);
  }

  std::vector<Action> merge(std::size_t rank, const std::vector<Placed>& transfers) const {
    std::vector<Action> out;
    out.reserve(transfers.size() + schedule_.ranks[rank].size());
    auto next = transfers.begin();
    const auto& actions = schedule_.ranks[rank];
    for (std::size_t index = 0; index < actions.size(); ++index) {
      const double begin = times_[rank][index].begin;
      auto last = next;  // the end of the transfers before this action
      while (last != transfers.end() && last->time <= begin) ++last;
      if (actions[index].kind == Kind::Recompute)  // sends that are ready, no receives after them
        while (last != next && !is_send(half_of(*std::prev(last), rank).kind)) --last;
      for (; next != last; ++next) out.push_back(half_of(*next, rank));
      out.push_back(actions[index]);
    }
    for (; next != transfers.end(); ++next) out.push_back(half_of(*next, rank));
    return out;
  }

  const Schedule& schedule_;
  SkipSend skip_send_;
  std::vector<std::vector<TimeSpan>> times_;
  std::vector<TimeSpan> forwards_;  // by stage and micro-batch
  std::vector<TimeSpan> backwards_;
};

}  // namespace

Recompute parse_recompute(std::string_view name) {
  return choose("recompute mode", name, recompute_modes).mode;
}

std::string_view to_string(Recompute mode) {
  for (const auto& named : recompute_modes) {
    if (named.mode == mode) return named.name;
  }
  throw UsageError(text("there is no recompute mode ", static_cast<int>(mode)));
}

std::vector<std::string> recompute_names() {
  std::vector<std::string> names;
  for (const auto& mode : recompute_modes) names.emplace_back(mode.name);
  return names;
}

Schedule lower(const Schedule& compute_only, const LowerOptions& options) {
  check_lowering(compute_only, options);
  Schedule schedule = compute_only;
  schedule.routes.clear();
  validate(schedule);
  schedule.routes = options.routes.value_or(main_lane(schedule.stages));
  insert_recompute(&schedule, options.recompute);
  schedule.ranks = Placement(schedule, options.skip_send).ranks();
  return schedule;
}

}  // namespace trestle::schedule
