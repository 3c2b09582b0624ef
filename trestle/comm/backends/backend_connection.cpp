#include "trestle/comm/backends/backend_connection.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <exception>

#include "trestle/base/text.h"
#include "trestle/comm/backends/checked_receives.h"
#include "trestle/comm/backends/direct_work.h"
#include "trestle/comm/message_tags.h"
#include "trestle/comm/sigpipe_guard.h"

namespace trestle::comm {

BackendConnection::BackendConnection(Place place, Backend cpu, Backend gpu)
    : Connection(std::move(place)), cpu_(std::move(cpu)), gpu_(std::move(gpu)) {}

BackendConnection::~BackendConnection() = default;

// Gloo's destructor waits for everything in flight until its deadline, even in an aborted group.
// The connection is leaked instead, with its threads: the process of a failed world ends soon.
std::shared_ptr<BackendConnection> BackendConnection::make(Place place, Backend cpu, Backend gpu) {
  return {new BackendConnection(std::move(place), std::move(cpu), std::move(gpu)),
          [](BackendConnection* connection) {
            connection->aborter()->retire();
            if (connection->end()) delete connection;
          }};
}

bool BackendConnection::end() {
  using std::chrono::milliseconds;
  using std::chrono::steady_clock;
  const auto last = steady_clock::now() + place().deadline;
  while (!all_done_before(steady_clock::now() + milliseconds(20))) {
    auto reason = place().control->failure_with_stall_note();
    if (!reason && steady_clock::now() < last) continue;
    abort(reason ? *reason
                 : text("rank ", place().ranks[static_cast<std::size_t>(place().rank)],
                        " released a group with messages in flight that no rank received"));
    return all_done_before(steady_clock::now() + milliseconds(500));
  }
  return true;
}

bool BackendConnection::all_done_before(std::chrono::steady_clock::time_point end) {
  bool done = sequence_.drain(end) && keeper_.drain(end);
  for (const auto& watcher : watchers_) done = watcher->drain(end) && done;
  for (const auto& [peer, receives] : receives_) done = receives->drain(end) && done;
  return done;
}

void BackendConnection::watch(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  const auto idle = std::ranges::find_if(
      watchers_, [](auto& watcher) { return watcher->drain(std::chrono::steady_clock::now()); });
  auto& watcher =
      idle == watchers_.end() ? watchers_.emplace_back(std::make_unique<JobThread>()) : *idle;
  watcher->add(std::move(job));
}

c10d::Backend& BackendConnection::backend_for(const at::Tensor& tensor) const {
  return tensor.is_cuda() ? *gpu_ : *cpu_;
}

std::string BackendConnection::late(const Fingerprint& print, int peer) const {
  const auto& [rank, ranks, deadline, control] = place();
  const int self = ranks[static_cast<std::size_t>(rank)];
  if (peer < 0)
    return text("rank ", self, " in ", describe(print), "; ", statuses(*control, ranks, self),
                control->silent_ranks(ranks));
  const int other = ranks[static_cast<std::size_t>(peer)];
  return text("rank ", self, " in ", describe(print),
              print.kind == Kind::Send ? " to rank " : " from rank ", other, "; rank ", other, " ",
              control->status_of(other), control->silent_ranks({self, other}));
}

Failed BackendConnection::failure_from(const std::exception& error, const Fingerprint& print,
                                       int peer) {
  const auto& [rank, ranks, deadline, control] = place();
  if (const auto known = control->failure_with_stall_note()) return {Failed::How::Rank, *known};
  if (is_timeout(error)) {
    const std::string reason =
        control->with_stall_note(deadline_message(deadline, late(print, peer)));
    control->fail(reason);
    return {Failed::How::Deadline, reason};
  }
  const std::string message = error.what();
  ControlPlane::Broken broken{.rank = ranks[static_cast<std::size_t>(rank)],
                              .call = describe(print),
                              .error = message.substr(0, message.find('\n'))};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int group_rank = static_cast<int>(r);
    if (group_rank != rank && (peer < 0 || group_rank == peer)) broken.awaited.push_back(ranks[r]);
  }
  return {Failed::How::Rank, control->explain(broken)};
}

Failed BackendConnection::failed(const std::string& mismatch) {
  place().control->fail(mismatch);
  return {Failed::How::Rank, mismatch};
}

// Gloo only gets CPU tensors here; GPU tensors go to the GPU backend if there is one.
BackendConnection::OnGpu BackendConnection::to_host(Request& request) const {
  if (!request.output.defined() || !request.output.is_cuda() || gpu_) return {};
  const at::NoGradGuard no_grad;
  OnGpu staged{request.output};
  const bool in_place = request.output.is_same(request.input);
  request.input = request.input.cpu();
  request.output = in_place ? request.input : at::empty_like(request.output, at::kCPU);
  return staged;
}

std::optional<Failed> BackendConnection::do_collective(Request& request, Check check,
                                                       const OnGpu& staged) {
  const Fingerprint print = request.print;
  try {
    if (const auto known = place().control->failure_with_stall_note())
      return Failed{Failed::How::Rank, *known};
    const BackendContext context{*cpu_, place().rank, place().ranks, place().deadline, in_flight_};
    Compared compared;
    if (check == Check::On) compared = compare(context, request);
    if (compared.difference) return failed(*compared.difference);
    const bool on_gpu = request.output.defined() && request.output.is_cuda();
    if (!compared.is_done && on_gpu)
      execute_on_gpu({*gpu_, context.rank, context.ranks, context.deadline, in_flight_}, request);
    else if (!compared.is_done)
      execute(context, request);
    if (staged.output.defined()) staged.output.copy_(request.output);
    request = {};
    return {};
  } catch (const std::exception& error) {
    return failure_from(error, print, -1);
  }
}

std::shared_ptr<Completion> BackendConnection::completion_of(const Fingerprint& print, int peer) {
  auto completion = std::make_shared<Completion>(
      place().control, place().deadline, [self = weak_from_this(), print, peer] {
        const auto connection = self.lock();
        return connection ? connection->late(print, peer) : describe(print);
      });
  in_flight_.begin(completion);
  return completion;
}

Work BackendConnection::collective(Request request, Check check) {
  OnGpu staged = to_host(request);
  const std::lock_guard lock(mutex_);  // order numbers follow the order of the jobs
  request.print.order = ++collectives_;
  auto completion = completion_of(request.print, -1);
  sequence_.add([this, request = std::move(request), check, staged = std::move(staged),
                 completion]() mutable {
    auto failed = do_collective(request, check, staged);
    staged = {};
    in_flight_.end(completion);
    completion->finish(std::move(failed));
  });
  return Work(std::move(completion));
}

Work BackendConnection::message(Request request, Check check) {
  if (const auto known = place().control->failure_with_stall_note())
    Failed{Failed::How::Rank, *known}.raise();
  if (check == Check::Off && request.input.numel() == 0) return {};
  const Fingerprint print = request.print;
  const int peer = request.peer;
  const SigpipeGuard sigpipe_guard;  // Gloo writes in this thread
  try {
    return print.kind == Kind::Send ? send(std::move(request), check)
                                    : receive(std::move(request), check);
  } catch (const std::exception& error) {
    failure_from(error, print, peer).raise();
  }
}

Work BackendConnection::send(Request request, Check check) {
  to_host(request);
  std::vector<at::Tensor> tensors = {request.input};
  DirectWork::Works works;
  if (check == Check::Off) {
    works.push_back(backend_for(tensors[0]).send(tensors, request.peer, plain_tag(request.tag)));
  } else {
    std::vector<at::Tensor> print = {
        at::empty({sizeof(Fingerprint)}, at::TensorOptions().dtype(at::kByte))};
    std::memcpy(print[0].mutable_data_ptr(), &request.print, sizeof(Fingerprint));
    const std::lock_guard lock(send_mutex_);
    works.push_back(cpu_->send(print, request.peer, print_tag));
    if (tensors[0].numel() > 0)
      works.push_back(
          backend_for(tensors[0]).send(tensors, request.peer, checked_tag(request.tag)));
    tensors.push_back(print[0]);
  }
  return Work(std::make_shared<DirectWork>(shared_from_this(), request.print, request.peer,
                                           std::move(works), std::move(tensors), nullptr));
}

Work BackendConnection::receive(Request request, Check check) {
  const OnGpu staged = to_host(request);
  std::function<void()> then;
  if (staged.output.defined())
    then = [to = staged.output, from = request.output] {
      const at::NoGradGuard no_grad;
      to.copy_(from);
    };
  if (check == Check::Off) {
    std::vector<at::Tensor> tensors = {request.output};
    DirectWork::Works works = {
        backend_for(tensors[0]).recv(tensors, request.peer, plain_tag(request.tag))};
    return Work(std::make_shared<DirectWork>(shared_from_this(), request.print, request.peer,
                                             std::move(works), std::move(tensors),
                                             std::move(then)));
  }
  auto completion = completion_of(request.print, request.peer);
  CheckedReceives& receives = receives_from(request.peer);
  receives.add(std::move(request), completion, std::move(then));
  return Work(std::move(completion));
}

CheckedReceives& BackendConnection::receives_from(int peer) {
  const std::lock_guard lock(mutex_);
  auto& receives = receives_[peer];
  if (!receives) receives = std::make_unique<CheckedReceives>(*this, peer);
  return *receives;
}

// When a receive times out, Gloo closes all connections of the group. That ends every wait, on this
// rank and on its peers.
void BackendConnection::abort(const std::string& reason) {
  if (is_broken_.exchange(true)) return;
  const SigpipeGuard sigpipe_guard;
  if (gpu_) gpu_->abort();
  try {
    std::vector<at::Tensor> nothing = {at::empty({1}, at::TensorOptions().dtype(at::kByte))};
    cpu_->recv(nothing, place().rank == 0 ? 1 : 0, INT_MAX)->wait(std::chrono::milliseconds(1));
  } catch (const std::exception&) {
    // The time-out is intended.
  }
  in_flight_.abort_all(reason);
}

}  // namespace trestle::comm
