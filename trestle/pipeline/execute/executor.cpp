#include "trestle/pipeline/execute/executor.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <latch>
#include <map>
#include <optional>
#include <string>

#include "trestle/base/error.h"
#include "trestle/comm/rank_error.h"
#include "trestle/device/device.h"
#include "trestle/device/stream.h"
#include "trestle/device/threads.h"
#include "trestle/pipeline/execute/failure.h"
#include "trestle/pipeline/execute/rank_progress.h"
#include "trestle/pipeline/execute/tie_actions.h"
#include "trestle/pipeline/transport/worker_settings.h"

namespace trestle::pipeline {
namespace {

using schedule::Action;
using schedule::Kind;

bool is_in_phase(const Action& action, Phase phase) {
  if (phase == Phase::Both) return true;
  const bool forwards = action.kind == Kind::Forward || action.kind == Kind::SendActivation ||
                        action.kind == Kind::RecvActivation || action.kind == Kind::Unshard ||
                        action.kind == Kind::SendSkip || action.kind == Kind::RecvSkip;
  return forwards == (phase == Phase::Forward);
}

bool is_gradient(Kind kind) { return kind == Kind::RecvGradient || kind == Kind::RecvSkipGradient; }

// The row without overlapped pairs: a forward, what it sends, and then the backward. The transport
// sends and receives beside both.
std::vector<Action> without_pairs(const std::vector<Action>& row) {
  std::vector<Action> result;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i].kind != Kind::OverlapForwardBackward) {
      result.push_back(row[i]);
      continue;
    }
    Action forward = schedule::forward(row[i].stage, row[i].micro_batch);
    Action backward = schedule::backward(row[i].partner_stage, row[i].partner_micro_batch);
    forward.threads = backward.threads = row[i].threads;
    result.push_back(forward);
    std::vector<Action> others;
    for (; i + 1 < row.size() && schedule::is_send(row[i + 1].kind); ++i) {
      const bool of_forward =
          row[i + 1].kind == Kind::SendActivation || row[i + 1].kind == Kind::SendSkip;
      (of_forward ? result : others).push_back(row[i + 1]);
    }
    result.push_back(backward);
    result.insert(result.end(), others.begin(), others.end());
  }
  return result;
}

// A rank's actions in one phase, in order. The table has each receive where a blocking transport
// would need it. This transport does not block, so each receive moves to just before the action
// that needs it, and no other action waits for it.
std::vector<Action> actions_of(const MiniBatchState& state, int rank, Phase phase) {
  std::vector<Action> result;
  std::vector<Action> posted;
  for (const auto& action : without_pairs(state.table().ranks[rank])) {
    if (!is_in_phase(action, phase)) continue;
    if (schedule::is_receive(action.kind)) {
      posted.push_back(action);
      continue;
    }
    const bool forward = action.kind == Kind::Forward;
    if (forward || action.kind == Kind::Backward || action.kind == Kind::InputGrad) {
      std::erase_if(posted, [&](const Action& receive) {
        const bool needed = receive.stage == action.stage &&
                            receive.micro_batch == action.micro_batch &&
                            is_gradient(receive.kind) != forward;
        if (needed) result.push_back(receive);
        return needed;
      });
    }
    result.push_back(action);
  }
  return with_ties(state, rank, phase, result);
}

// The messages of tensor ranks while it lives. One thread runs all actions of a process that has
// tensor ranks, so they are those of the current action.
class MessageScope {
 public:
  explicit MessageScope(MessageLog* log) : log_(log) {
    if (log_) log_->start();
  }
  ~MessageScope() {
    if (log_) log_->take();
  }
  MessageScope(const MessageScope&) = delete;
  MessageScope& operator=(const MessageScope&) = delete;

  std::vector<LoggedMessage> on_clock_of(const device::Clock& clock) const {
    if (!log_) return {};
    std::vector<LoggedMessage> messages = log_->take();
    const double later = clock.now() - MessageLog::now();
    for (LoggedMessage& message : messages)
      for (double* time : {&message.begin, &message.wait, &message.end}) *time += later;
    return messages;
  }

 private:
  MessageLog* log_;
};

// Runs one action. Records its times and the peak memory of its device.
void execute_and_record(MiniBatchState& state, int rank, const Action& action) {
  const at::Device device = state.stages[action.stage].device();
  RankRecord& record = state.record.ranks[rank];
  if (record.actions.empty()) {  // memory from before the step
    take_recent_peak(device);
    record.before = memory_usage(device).current;
  }
  auto begin = state.clock.mark(device);
  std::vector<LoggedMessage> sent;
  try {
    if (action.kind == Kind::Step) {
      // The wait for the norms of all ranks is idle time, and not a part of the action.
      state.transport->norms();
      begin = state.clock.mark(device);
    }
    std::optional<DeviceThreads> threads;
    if (state.inputs.threads > 0)
      threads.emplace(device, action.threads > 0 ? action.threads : state.inputs.threads);
    const MessageScope messages(state.inputs.log.get());
    execute(state, action);
    sent = messages.on_clock_of(state.clock);
  } catch (const Cancelled&) {
    throw;
  } catch (...) {
    rethrow_from(state, rank, action);
  }
  const auto end = state.clock.mark(device);
  state.transport->finished(rank, action);
  if (is_tie(state.cut, action)) return;  // not in the table
  record.actions.push_back({.action = action,
                            .begin = begin,
                            .end = end,
                            .peak = take_recent_peak(device),
                            .after = memory_usage(device).current,
                            .messages = std::move(sent)});
}

void expect_messages(MiniBatchState& state, int rank, const std::vector<Action>& actions) {
  std::vector<StageTransport::Expected> expected;
  for (const auto& action : actions) {
    if (!schedule::is_receive(action.kind)) continue;
    const Transfer transfer = transfer_of(state, action);
    if (!schedule::within_rank(state.table().rank_of_stage, route_of(state.cut, transfer)))
      expected.push_back({transfer, state.stages[action.stage].device()});
  }
  state.transport->expect(rank, std::move(expected));
}

// Adds this rank's current action to a failure that came from another rank.
void add_progress(const MiniBatchState& state, int rank, const std::vector<Action>& row,
                  std::size_t at) {
  try {
    if (const auto failure = state.transport->failure()) std::rethrow_exception(failure);
  } catch (RankError& error) {
    error.add_context(describe_rank_progress(state, rank, row, at));
  } catch (...) {  // the failure of a rank of this process
  }
}

void run_rank(MiniBatchState& state, int rank, Phase phase) {
  std::vector<Action> actions;
  std::size_t at = 0;
  try {
    actions = actions_of(state, rank, phase);
    expect_messages(state, rank, actions);
    for (; at < actions.size(); ++at) {
      const Action& action = actions[at];
      // A rank that never waits stops here too.
      if (state.transport->failure()) return add_progress(state, rank, actions, at);
      execute_and_record(state, rank, action);
    }
    state.transport->flush(rank);
  } catch (const Cancelled&) {  // another rank failed
    add_progress(state, rank, actions, at);
  } catch (...) {
    state.transport->cancel(std::current_exception());
  }
}

bool can_run(const MiniBatchState& state, const Action& action) {
  if (action.kind == Kind::Step) return state.transport->has_norms();
  if (!schedule::is_receive(action.kind)) return true;
  return state.transport->arrived(transfer_of(state, action));
}

// State that a worker takes over from the calling thread: grad mode, autocast and other
// thread-local state, and the current streams, so that the caller's operators and the worker's run
// in one order.
class CallersState {
 public:
  explicit CallersState(const std::vector<at::Device>& devices)
      : streams_(device::current_streams(devices)) {}

  // Runs the job with the caller's state. Returns what it throws.
  template <class Job>
  std::exception_ptr run(const Job& job) const {
    try {
      const at::ThreadLocalStateGuard guard(state_);
      const device::StreamScope scope(streams_);
      job();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

 private:
  const at::ThreadLocalState state_;
  const std::vector<c10::Stream> streams_;
};

bool ranks_share_device(const std::vector<int>& rank_of_stage, const StageList& stages) {
  std::map<std::string, int> rank_of_device;
  return std::any_of(stages.begin(), stages.end(), [&](const Stage& stage) {
    const int rank = rank_of_stage[stage.index()];
    return rank_of_device.try_emplace(stage.device().str(), rank).first->second != rank;
  });
}

}  // namespace

Executor::Executor(const std::vector<int>& rank_of_stage, const StageList& stages, int threads,
                   std::optional<int> own_rank, Replicated replicated)
    : ranks_(1 + *std::max_element(rank_of_stage.begin(), rank_of_stage.end())),
      own_rank_(own_rank),
      in_caller_(std::all_of(stages.begin(), stages.end(),
                             [](const Stage& stage) { return stage.device().is_cpu(); })),
      one_thread_(!own_rank &&
                  (in_caller_ || replicated == Replicated::OverTensorRanks ||
                   (replicated == Replicated::Yes && ranks_share_device(rank_of_stage, stages)))) {
  if (in_caller_) return;
  for (const Stage& stage : stages) devices_.push_back(stage.device());
  const int workers = own_rank || one_thread_ ? 1 : ranks_;
  threads_ = threads > 0 ? threads : own_rank ? at::get_num_threads() : threads_of_each(workers);
  for (int i = 0; i < workers; ++i)
    workers_.push_back(std::make_unique<comm::JobThread>(worker_settings(threads_)));
}

void Executor::run(MiniBatchState& state, Phase phase) {
  if (in_caller_) return run_here(state, phase);
  if (one_thread_) return run_on(0, [&] { run_here(state, phase); });
  run_on_all([&](int rank) { run_rank(state, rank, phase); });
  if (auto failure = state.transport->failure()) std::rethrow_exception(failure);
}

void Executor::run_on(int rank, const std::function<void()>& job) {
  if (in_caller_) return job();
  std::exception_ptr failure;
  std::latch done(1);
  const CallersState state(devices_);
  worker_of(rank).add([&] {
    failure = state.run(job);
    done.count_down();
  });
  done.wait();
  if (failure) std::rethrow_exception(failure);
}

void Executor::run_on_all(const std::function<void(int rank)>& job) {
  if (own_rank_) return run_on(*own_rank_, [&] { job(*own_rank_); });
  if (in_caller_) {
    for (int rank = 0; rank < ranks_; ++rank) job(rank);
    return;
  }
  const CallersState state(devices_);
  std::vector<std::exception_ptr> failures(ranks_);
  std::latch done(ranks_);
  {
    std::lock_guard lock(hand_out_);
    for (int rank = 0; rank < ranks_; ++rank) {
      worker_of(rank).add([&, rank] {
        failures[rank] = state.run([&] { job(rank); });
        done.count_down();
      });
    }
  }
  done.wait();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

void Executor::run_here(MiniBatchState& state, Phase phase) {
  // Without workers the runs of two threads take turns, as they do on workers.
  std::unique_lock<std::recursive_mutex> turn(callers_turn_, std::defer_lock);
  if (in_caller_) turn.lock();
  if (own_rank_) return run_own(state, phase);
  state.one_thread = true;
  const int ranks = state.table().rank_count();
  std::vector<std::vector<Action>> actions;
  for (int rank = 0; rank < ranks; ++rank) actions.push_back(actions_of(state, rank, phase));
  std::vector<std::size_t> next(ranks, 0);
  for (;;) {
    bool moved = false;
    bool finished = true;
    for (int rank = 0; rank < ranks; ++rank) {
      while (next[rank] < actions[rank].size() && can_run(state, actions[rank][next[rank]])) {
        execute_and_record(state, rank, actions[rank][next[rank]++]);
        moved = true;
      }
      finished = finished && next[rank] == actions[rank].size();
    }
    if (finished) return;
    if (!moved)
      throw StateError(
          "internal: no rank of the table can continue, although validate() accepted it");
  }
}

// All other ranks are in other threads or processes, so this thread may wait for them.
void Executor::run_own(MiniBatchState& state, Phase phase) {
  run_rank(state, *own_rank_, phase);
  if (auto failure = state.transport->failure()) std::rethrow_exception(failure);
}

}  // namespace trestle::pipeline
