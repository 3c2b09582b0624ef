#include "trestle/schedule/unit_times.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/grid.h"
#include "trestle/schedule/routes.h"

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

class Walk {
 public:
  explicit Walk(const Schedule& schedule)
      : schedule_(schedule),
        routes_(schedule.routes.empty() ? main_lane(schedule.stages) : schedule.routes),
        table_(schedule.stages, routes_) {}

  std::vector<std::vector<Span>> run() {
    spans_.resize(schedule_.ranks.size());
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < spans_.size(); ++rank) {
        while (spans_[rank].size() < schedule_.ranks[rank].size() && advance(rank)) progress = true;
      }
    }
    for (std::size_t rank = 0; rank < spans_.size(); ++rank) {
      const std::size_t index = spans_[rank].size();
      if (index == schedule_.ranks[rank].size()) continue;
      throw UsageError(text("schedule '", schedule_.name, "' gets stuck: rank ", rank,
                            " waits for ever before ", to_string(schedule_.ranks[rank][index]),
                            "\n", format_grid(schedule_, GridCell{static_cast<int>(rank), index})));
    }
    return std::move(spans_);
  }

 private:
  using Done = std::map<std::pair<int, int>, double>;

  const Route& route(int index) const { return routes_[static_cast<std::size_t>(index)]; }

  // The time at which all that the cell reads is there; nothing while some of it is not.
  std::optional<double> ready(const Action& action) const {
    double time = 0;
    const auto wait = [&](const Done& done, int stage, int micro_batch) {
      const auto found = done.find({stage, micro_batch});
      if (found == done.end()) return false;
      time = std::max(time, found->second);
      return true;
    };
    if (const auto cell = forward_in(action)) {
      for (const int index : table_.into(cell->stage)) {
        if (!wait(forwards_, route(index).from_stage, cell->micro_batch)) return std::nullopt;
      }
    }
    if (const auto cell = backward_in(action)) {
      for (const int index : table_.out_of(cell->stage)) {
        if (!wait(backwards_, route(index).to_stage, cell->micro_batch)) return std::nullopt;
      }
    }
    return time;
  }

  bool advance(std::size_t rank) {
    auto& spans = spans_[rank];
    const Action& action = schedule_.ranks[rank][spans.size()];
    const auto time = ready(action);
    if (!time) return false;
    const double begin = std::max(*time, spans.empty() ? 0 : spans.back().end);
    const double end = begin + unit_time(action.kind);
    spans.push_back({begin, end});
    if (const auto cell = forward_in(action)) forwards_[{cell->stage, cell->micro_batch}] = end;
    if (const auto cell = backward_in(action)) backwards_[{cell->stage, cell->micro_batch}] = end;
    return true;
  }

  const Schedule& schedule_;
  std::vector<Route> routes_;
  RouteTable table_;
  Done forwards_;
  Done backwards_;
  std::vector<std::vector<Span>> spans_;
};

}  // namespace

std::vector<std::vector<Span>> unit_times(const Schedule& schedule) { return Walk(schedule).run(); }

}  // namespace trestle::schedule
