#include "trestle/schedule/optimizer_steps.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/text.h"
#include "trestle/schedule/table_error.h"

namespace trestle::schedule {
namespace {

constexpr const char* norms_place =
    "Put NORM behind all that the rank computes, sends, receives and reduces.";
constexpr const char* steps_place =
    "Put STEP behind the rank's NORM, and behind all computations and reductions of its stage.";

Action optimizer_action(Kind kind, int stage) {
  return {.kind = kind, .stage = static_cast<std::int16_t>(stage)};
}

// Computes or moves gradients.
bool makes_gradients(Kind kind) {
  return is_compute(kind) || is_send(kind) || is_receive(kind) || kind == Kind::ReduceGrad;
}

struct Interval {
  double begin, end;
};

// Seconds that lie in at least one of them.
double covered(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  double seconds = 0, end = 0;
  for (const Interval& interval : intervals) {
    seconds += std::max(0.0, interval.end - std::max(interval.begin, end));
    end = std::max(end, interval.end);
  }
  return seconds;
}

class OptimizerChecker {
 public:
  explicit OptimizerChecker(const Schedule& schedule) : schedule_(schedule) {}

  void run() {
    for (int rank = 0; rank < schedule_.rank_count(); ++rank) norms_.push_back(find_norm(rank));
    check_all_have_norms();
    stepped_.assign(static_cast<std::size_t>(schedule_.stages), false);
    last_use_.assign(static_cast<std::size_t>(schedule_.stages), 0);
    for (int rank = 0; rank < schedule_.rank_count(); ++rank) check_steps(rank);
  }

 private:
  const std::vector<Action>& row(int rank) const {
    return schedule_.ranks[static_cast<std::size_t>(rank)];
  }

  [[noreturn]] void fail(const std::string& rule, const char* hint, int rank,
                         std::size_t index) const {
    throw TableError(schedule_, {.rule = rule, .hint = hint, .cell = GridCell{rank, index}});
  }

  std::optional<std::size_t> find_norm(int rank) const {
    std::optional<std::size_t> found;
    const auto& actions = row(rank);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].kind == Kind::Norm) {
        if (found)
          fail(text("rank ", rank, " has a second NORM, ", to_string(actions[i]),
                    ": one NORM covers all its stages"),
               "Remove one of the two.", rank, i);
        found = i;
      } else if (found && makes_gradients(actions[i].kind)) {
        fail(text(to_string(actions[*found]), " comes before ", to_string(actions[i]),
                  ": the norm covers all gradients, so NORM comes after them"),
             norms_place, rank, *found);
      }
    }
    return found;
  }

  void check_all_have_norms() const {
    const auto has = [](const auto& norm) { return norm.has_value(); };
    const auto with = std::find_if(norms_.begin(), norms_.end(), has);
    if (with == norms_.end()) return;
    const int one = static_cast<int>(with - norms_.begin());
    for (const int rank : schedule_.rank_of_stage) {
      if (norms_[static_cast<std::size_t>(rank)]) continue;
      fail(text("rank ", one, " has a NORM and rank ", rank,
                " has none: the norm covers all ranks' gradients"),
           "Give each rank that has a stage one NORM, or give none.", one, **with);
    }
  }

  void check_steps(int rank) {
    const auto& actions = row(rank);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (!is_compute(actions[i].kind) && actions[i].kind != Kind::ReduceGrad) continue;
      last_use_[static_cast<std::size_t>(actions[i].stage)] = i;
      if (actions[i].kind == Kind::OverlapForwardBackward)
        last_use_[static_cast<std::size_t>(actions[i].partner_stage)] = i;
    }
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].kind != Kind::Step) continue;
      const auto stage = static_cast<std::size_t>(actions[i].stage);
      if (stepped_[stage])
        fail(text(to_string(actions[i]), " occurs twice in the table"), "Remove one of the two.",
             rank, i);
      stepped_[stage] = true;
      check_step(rank, i);
    }
  }

  void check_step(int rank, std::size_t step) const {
    const auto& actions = row(rank);
    const auto& norm = norms_[static_cast<std::size_t>(rank)];
    if (norm && step < *norm)
      fail(text(to_string(actions[step]), " comes before ", to_string(actions[*norm]),
                ", which it needs"),
           steps_place, rank, step);
    const std::size_t last = last_use_[static_cast<std::size_t>(actions[step].stage)];
    if (last > step)
      fail(text(to_string(actions[step]), " comes before ", to_string(actions[last]),
                ", which uses the old weights"),
           steps_place, rank, step);
  }

  const Schedule& schedule_;
  std::vector<std::optional<std::size_t>> norms_;  // for each rank its index in the row
  std::vector<bool> stepped_;                      // for each stage
  std::vector<std::size_t> last_use_;              // for each stage the index in its rank's row
};

}  // namespace

Schedule add_optimizer_steps(Schedule lowered) {
  for (int rank = 0; rank < lowered.rank_count(); ++rank) {
    auto& row = lowered.ranks[static_cast<std::size_t>(rank)];
    bool first = true;
    for (int stage = 0; stage < lowered.stages; ++stage) {
      if (lowered.rank_of_stage[static_cast<std::size_t>(stage)] != rank) continue;
      if (std::exchange(first, false)) row.push_back(optimizer_action(Kind::Norm, stage));
      row.push_back(optimizer_action(Kind::Step, stage));
    }
  }
  return lowered;
}

double optimizer_seconds(const Timeline& timeline) {
  std::vector<Interval> all, others;
  for (const Event& event : timeline.events) {
    all.push_back({event.begin, event.end});
    if (event.action.kind != Kind::Norm && event.action.kind != Kind::Step)
      others.push_back({event.begin, event.end});
  }
  return covered(std::move(all)) - covered(std::move(others));
}

void check_optimizer_steps(const Schedule& schedule) { OptimizerChecker(schedule).run(); }

}  // namespace trestle::schedule
