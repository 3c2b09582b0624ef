#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "trestle/comm/job_thread.h"
#include "trestle/pipeline/execute/mini_batch_state.h"

namespace trestle::pipeline {

// Which of the table's actions run: with a caller's own backward, the forwards now and the rest
// later.
enum class Phase { Both, Forward, Backward };

// Whether other pipelines hold the same stages (PipelineOptions::replicas), or slices of their
// layers (PipelineOptions::tensor).
enum class Replicated { No, Yes, OverTensorRanks };

// Runs each rank's list of actions.
class Executor {
 public:
  // One worker thread a rank, with `threads` intra-op threads; 0 = threads_of_each(workers). With
  // `own_rank`, only that rank's actions run in this process; 0 threads = those of the calling
  // thread.
  // One thread runs the actions of all ranks, each as soon as its inputs are there:
  // - the calling thread, if all devices are the plain cpu;
  // - one worker, if the stages are replicated and several ranks share a device. The backwards of a
  //   device run in one thread, where they wait for the other replicas' collectives. All replicas
  //   therefore need one order of the backwards, which several workers would leave to timing.
  // - one worker over tensor ranks: all of them must start their layers' collectives in one order.
  Executor(const std::vector<int>& rank_of_stage, const StageList& stages, int threads,
           std::optional<int> own_rank, Replicated replicated);

  // Runs one phase of the state's table. Returns when all ranks are done. If one fails, all others
  // are cancelled and the first failure is thrown: it keeps its type, and its message gains stage,
  // micro-batch and shapes.
  void run(MiniBatchState& state, Phase phase);

  // The same in the calling thread, for every kind of device: for a caller's backward that runs on
  // an autograd device thread, which must never wait for another thread.
  void run_here(MiniBatchState& state, Phase phase);

  // Runs `job` on a rank's worker, or in the calling thread if there are no workers. Throws what
  // `job` throws.
  void run_on(int rank, const std::function<void()>& job);
  // Runs job(rank) on all workers at the same time; in one thread, one after the other. Over ranks
  // both functions run only the own rank's jobs.
  void run_on_all(const std::function<void(int rank)>& job);

  int ranks() const { return ranks_; }
  // Whether one thread runs the actions of all ranks.
  bool one_thread() const { return one_thread_; }
  // Intra-op threads of an action that sets no number.
  int threads() const { return threads_; }

 private:
  void run_own(MiniBatchState& state, Phase phase);
  comm::JobThread& worker_of(int rank) { return *workers_.at(workers_.size() == 1 ? 0 : rank); }

  int ranks_;
  std::optional<int> own_rank_;
  int threads_ = 0;
  std::vector<at::Device> devices_;
  bool in_caller_;  // there are no workers
  bool one_thread_;
  std::mutex hand_out_;  // so that all workers get the runs of two threads in one order
  std::recursive_mutex callers_turn_;
  std::vector<std::unique_ptr<comm::JobThread>> workers_;
};

// Runs one action. A receive waits for its message.
void execute(MiniBatchState& state, const schedule::Action& action);

// The transfer of a SEND or RECV.
schedule::Transfer transfer_of(const MiniBatchState& state, const schedule::Action& action);

}  // namespace trestle::pipeline
