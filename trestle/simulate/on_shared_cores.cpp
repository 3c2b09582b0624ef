#include "trestle/simulate/on_shared_cores.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "trestle/simulate/step_flow.h"

namespace trestle::simulate {

double SharedCores::speed(double actions) const {
  const double running = std::max(actions * ranks_at_once, 1.0);
  if (running >= cores) return cores / running / slowdown;
  return 1 / (1 + (slowdown - 1) * (running - 1) / (cores - 1));
}

namespace {

using schedule::Action;
using schedule::Schedule;
using schedule::Timeline;

// All running actions have one speed, which changes when one begins or ends. `done_` is the work of
// an action that has run since the begin of the step. An action that begins at `done_` ends when
// that has grown by its own work, whatever begins or ends before. So the running actions are
// ordered once, when they begin.
class OnSharedCores {
 public:
  OnSharedCores(const Schedule& schedule, const Costs& costs)
      : cores_(*costs.shared_cores), flow_(schedule, costs), begun_(schedule.ranks.size(), 0) {}

  Timeline run() {
    start_ready_ranks();
    while (!running_.empty() || !later_.empty()) {
      const double end = running_.empty() ? never : now_ + (running_.top().first - done_) / speed();
      if (!later_.empty() && later_.top().first < end)
        start_later_rank();
      else
        end_action(end);
      start_ready_ranks();
    }
    return flow_.timeline();
  }

 private:
  using Due = std::pair<double, int>;  // a time, or an amount of work, and the rank
  using Queue = std::priority_queue<Due, std::vector<Due>, std::greater<>>;
  static constexpr double never = std::numeric_limits<double>::infinity();

  double speed() const { return cores_.speed(static_cast<double>(running_.size())); }

  void end_action(double time) {
    const auto [work, rank] = running_.top();
    running_.pop();
    now_ = time;
    done_ = work;
    const auto r = static_cast<std::size_t>(rank);
    flow_.perform(*flow_.next_action(r), r, begun_[r], now_);
    start(r);
  }

  // The inputs of the rank have come.
  void start_later_rank() {
    const auto [time, rank] = later_.top();
    later_.pop();
    if (!running_.empty()) done_ += (time - now_) * speed();
    now_ = time;
    start(static_cast<std::size_t>(rank));
  }

  void start_ready_ranks() {
    while (const auto rank = flow_.next_rank()) start(static_cast<std::size_t>(*rank));
  }

  // Begins the rank's next action that takes time, or lets the rank wait.
  void start(std::size_t rank) {
    while (const Action* action = flow_.next_action(rank)) {
      double begin = now_;
      if (!flow_.await(*action, rank, &begin)) return;
      if (begin > now_) return later_.emplace(begin, static_cast<int>(rank));
      if (const double seconds = flow_.seconds_of(*action); seconds > 0) {
        begun_[rank] = now_;
        return running_.emplace(done_ + seconds, static_cast<int>(rank));
      }
      flow_.perform(*action, rank, now_, now_);
    }
  }

  const SharedCores cores_;
  StepFlow flow_;
  double now_ = 0, done_ = 0;
  std::vector<double> begun_;  // for each rank the begin of its running action
  Queue running_;              // by done_ at their ends
  Queue later_;                // ranks whose inputs are in flight, by the time of their arrival
};

}  // namespace

Timeline simulate_on_shared_cores(const Schedule& schedule, const Costs& costs) {
  return OnSharedCores(schedule, costs).run();
}

}  // namespace trestle::simulate
