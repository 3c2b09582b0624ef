#pragma once

#include <cstddef>
#include <vector>

#include "trestle/schedule/routes.h"
#include "trestle/simulate/action_times.h"
#include "trestle/simulate/collective_queue.h"
#include "trestle/simulate/message_flow.h"
#include "trestle/simulate/tie_places.h"

namespace trestle::simulate {

// A step of a rank's program: its actions as waits, computation and communication in turn.
struct Step {
  enum class What { Take, Have, SendTie, BeginAction, Compute, Start, Wait, AwaitNorms, EndAction };

  What what = What::Compute;
  std::size_t number = 0;  // the place of the message, or the number of the collective
  double seconds = 0;      // Compute
  std::size_t action = 0;  // in the rank's row
};

// Translates the actions of ranks to steps. The rank takes a message just before the action that
// needs it, that of a tied parameter last. Keeps references to all arguments.
class RankPrograms {
 public:
  RankPrograms(const schedule::Schedule& schedule, const Costs& costs, MessageFlow& messages,
               CollectiveQueue& collectives);

  int norms() const { return times_.norms(); }
  // Calls MessageFlow::expect().
  std::vector<Step> of_rank(int rank);

 private:
  using Action = schedule::Action;

  const StageTraffic* traffic(int stage) const;
  void push(Step::What what, std::size_t number = 0, double seconds = 0);
  void note_last_backwards(const std::vector<Action>& row);
  void take_inputs(const Action& action, std::vector<schedule::Transfer>& posted,
                   std::vector<std::size_t>& order);
  // The messages of ties before and after an action of this rank.
  void take_ties(std::vector<std::size_t>& order);
  void send_ties();
  void send_values_at_start();
  void send_tie(std::size_t tie, schedule::Transfer::Way way);
  void add(const Action& action);
  std::size_t collective(const Collective& cost, CollectiveQueue::Kind kind, const Action& action);
  void unshard(const StageTraffic& own, const Action& action, double seconds);
  void reduce(const StageTraffic& own, const Action& action, double seconds);
  bool start_reduction(const StageTraffic& own, Action action);
  void compute(const StageTraffic& own, const Action& action, double seconds);
  double start_ready_reductions(const StageTraffic& own, const Action& action, double seconds,
                                double done, double end);

  const schedule::Schedule& schedule_;
  const Costs& costs_;
  schedule::RouteTable routes_;
  ActionTimes times_;
  MessageFlow& messages_;
  CollectiveQueue& collectives_;
  const std::vector<TiePlaces> ties_;
  std::vector<std::vector<std::size_t>> reductions_;  // of each stage, those that have begun
  std::vector<std::size_t> last_backward_;            // of each stage, in this rank's row
  std::vector<Step> steps_;
  int rank_ = 0;
  std::size_t action_ = 0;  // in the rank's row
};

}  // namespace trestle::simulate
