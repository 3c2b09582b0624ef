#include "trestle/schedule/lower.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <tuple>
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

// A position in the common order of transfers and computation. Every rank's list is a part of it,
// so the first pending transfer can always run, even where sends block. At equal times the order
// is: just-in-time sends, other transfers, computation. Recomputations wait for nothing and are
// added to each rank's list afterwards.
struct Place {
  double time = 0;
  int turn = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};
constexpr int before_all = 0;
constexpr int transfers_at = 1;
constexpr int computes = 2;

struct Placed {
  Place place;
  Transfer transfer;
  int sender = 0;  // the sending stage
  Action action;

  // At equal positions activations come first, then gradients from the front of the pipeline to its
  // end. Each rank thus sends what is ready before it receives what an R can precede.
  auto key() const {
    return std::tie(place, transfer.way, sender, transfer.micro_batch, transfer.route);
  }
};

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
    std::vector<std::vector<Placed>> transfers(schedule_.ranks.size());
    for (std::size_t route = 0; route < schedule_.routes.size(); ++route) {
      if (within_rank(schedule_, schedule_.routes[route])) continue;
      for (int i = 0; i < schedule_.micro_batches; ++i) {
        add({static_cast<int>(route), i, Way::Activation}, &transfers);
        add({static_cast<int>(route), i, Way::Gradient}, &transfers);
      }
    }
    std::vector<std::vector<Action>> merged;
    for (std::size_t rank = 0; rank < transfers.size(); ++rank)
      merged.push_back(merge(rank, &transfers[rank]));
    return merged;
  }

 private:
  void add(const Transfer& transfer, std::vector<std::vector<Placed>>* transfers) const {
    const Place place = place_of(transfer);
    const Action send = send_of(schedule_.routes, transfer);
    for (const Action& end : {send, receive_of(schedule_.routes, transfer)}) {
      (*transfers)[rank_of(end.stage)].push_back({place, transfer, send.stage, end});
    }
  }

  std::size_t place_in(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }

  std::size_t rank_of(int stage) const {
    return static_cast<std::size_t>(schedule_.rank_of_stage[static_cast<std::size_t>(stage)]);
  }

  Place place_of(const Transfer& transfer) const {
    const Route& route = schedule_.routes[static_cast<std::size_t>(transfer.route)];
    if (transfer.way == Way::Gradient) {
      return {backwards_[place_in(route.to_stage, transfer.micro_batch)].end, transfers_at};
    }
    const double made = forwards_[place_in(route.from_stage, transfer.micro_batch)].end;
    if (!route.skip || skip_send_ == SkipSend::Eager) return {made, transfers_at};
    // The latest position that does not delay the consumer: the consumer's begin, or the begin of
    // the producer rank's action that is running then.
    const double needed = forwards_[place_in(route.to_stage, transfer.micro_batch)].begin;
    const auto& spans = times_[rank_of(route.from_stage)];
    auto after =
        std::lower_bound(spans.begin(), spans.end(), needed,
                         [](const TimeSpan& span, double time) { return span.begin < time; });
    if (after != spans.begin()) {
      const TimeSpan& running = *std::prev(after);
      if (running.begin >= made && needed < running.end) return {running.begin, before_all};
    }
    return {needed, transfers_at};
  }

  std::vector<Action> merge(std::size_t rank, std::vector<Placed>* transfers) const {
    std::sort(transfers->begin(), transfers->end(),
              [](const Placed& a, const Placed& b) { return a.key() < b.key(); });
    std::vector<Action> out;
    out.reserve(transfers->size() + schedule_.ranks[rank].size());
    auto next = transfers->begin();
    const auto& actions = schedule_.ranks[rank];
    for (std::size_t index = 0; index < actions.size(); ++index) {
      const double begin = times_[rank][index].begin;
      const bool recompute = actions[index].kind == Kind::Recompute;
      auto last = next;  // the end of the transfers before this action
      if (recompute) {   // all sends that are ready, without the receives after them
        for (auto at = next; at != transfers->end() && at->place.time <= begin; ++at) {
          if (is_send(at->action.kind)) last = std::next(at);
        }
      } else {
        while (last != transfers->end() && last->place < Place{begin, computes}) ++last;
      }
      for (; next != last; ++next) out.push_back(next->action);
      out.push_back(actions[index]);
    }
    for (; next != transfers->end(); ++next) out.push_back(next->action);
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
