#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "trestle/pipeline/step_state.h"
#include "trestle/pipeline/worker.h"

// Walks each rank's list of actions.
namespace trestle::pipeline {

// Which of the actions: a caller's own backward runs the forwards now and the rest later.
enum class Part { All, Forwards, Backwards };

class Executor {
 public:
  // `threads`: of one operator on a worker; 0 = the cores divided by the ranks. One worker for each
  // rank; none where every device is the plain cpu: there the calling thread
  // runs all ranks' actions, each as soon as what it needs is there. With `own_rank` the other ranks
  // are elsewhere: only that one's actions are run, with the calling thread's number of threads if
  // none is given.
  Executor(int ranks, const StageList& stages, int threads, std::optional<int> own_rank);

  // Runs that part of the state's table and returns when every rank is done. If one fails, the
  // others are cancelled and the first failure is thrown: its type is kept, its message gains
  // stage, micro-batch and shapes.
  void run(StepState& state, Part part);

  // The same in the calling thread, whatever the devices: for a caller's backward that already runs
  // on an autograd device thread, which must never wait for another thread.
  void run_here(StepState& state, Part part);

  // Runs `job` on a rank's worker, with its thread settings, or here where there is none; throws what it
  // throws.
  void run_on(int rank, const std::function<void()>& job);
  // job(rank) on all workers at the same time; one after the other where there are none. Over ranks
  // both run the own rank's jobs alone.
  void run_on_all(const std::function<void(int rank)>& job);

  int ranks() const { return ranks_; }
  // Intra-op threads of a rank's actions that name no number of their own.
  int threads() const { return threads_; }

 private:
  void run_own(StepState& state, Part part);

  int ranks_;
  std::optional<int> own_rank_;
  int threads_ = 0;
  std::vector<at::Device> devices_;
  bool in_caller_;       // no workers: the calling thread runs everything
  std::mutex hand_out_;  // all workers get the runs of several threads in the same order
  std::recursive_mutex callers_turn_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Carries out one action. Blocks where it receives.
void execute(StepState& state, const schedule::Action& action);

// What a SEND or RECV moves.
schedule::Transfer transfer_of(const StepState& state, const schedule::Action& action);

// Whether a table that a user passes may contain this kind of action. The pipeline adds reductions,
// norms and optimizer steps itself.
bool allowed_in_user_table(schedule::Kind kind);

}  // namespace trestle::pipeline
