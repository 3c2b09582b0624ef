#include "trestle/comm/engine_connection.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <climits>
#include <cstring>
#include <exception>

#include "trestle/base/text.h"
#include "trestle/comm/checked_receives.h"
#include "trestle/comm/direct_work.h"
#include "trestle/comm/message_tags.h"
#include "trestle/comm/no_broken_pipe.h"

namespace trestle::comm {

EngineConnection::EngineConnection(Place place, Backend cpu, Backend gpu)
    : Connection(std::move(place)), cpu_(std::move(cpu)), gpu_(std::move(gpu)) {}

EngineConnection::~EngineConnection() = default;

// Gloo's own destructor waits for what is under way until its deadline, also in a group that is
// broken. Where that would be, the connection and its threads are left to the end of the process,
// which in a world that failed is near.
std::shared_ptr<EngineConnection> EngineConnection::make(Place place, Backend cpu, Backend gpu) {
  return {new EngineConnection(std::move(place), std::move(cpu), std::move(gpu)),
          [](EngineConnection* connection) {
            connection->breaker()->retire();
            if (connection->end()) delete connection;
          }};
}

bool EngineConnection::end() {
  using std::chrono::milliseconds;
  using std::chrono::steady_clock;
  const auto last = steady_clock::now() + place().deadline;
  while (!all_done_before(steady_clock::now() + milliseconds(20))) {
    auto reason = place().control->failure_in_own_words();
    if (!reason && steady_clock::now() < last) continue;
    break_off(reason ? *reason
                     : text("rank ", place().ranks[static_cast<std::size_t>(place().rank)],
                            " let go of a group with messages under way that nobody took"));
    return all_done_before(steady_clock::now() + milliseconds(500));
  }
  return true;
}

bool EngineConnection::all_done_before(std::chrono::steady_clock::time_point end) {
  bool done = sequence_.drain(end) && keeper_.drain(end);
  for (const auto& [peer, receives] : receives_) done = receives->drain(end) && done;
  return done;
}

c10d::Backend& EngineConnection::engine_for(const at::Tensor& tensor) const {
  return tensor.is_cuda() ? *gpu_ : *cpu_;
}

std::string EngineConnection::late(const Fingerprint& print, int peer) const {
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

Failed EngineConnection::failure_from(const std::exception& error, const Fingerprint& print,
                                      int peer) {
  const auto& [rank, ranks, deadline, control] = place();
  if (const auto known = control->failure_in_own_words()) return {Failed::How::Rank, *known};
  const std::string message = error.what();
  if (message.find("Timed out waiting") != std::string::npos ||
      message.find("timed out") != std::string::npos) {
    const std::string reason = control->own_words(deadline_message(deadline, late(print, peer)));
    control->fail(reason);
    return {Failed::How::Deadline, reason};
  }
  Control::Broken broken{.rank = ranks[static_cast<std::size_t>(rank)],
                         .call = describe(print),
                         .error = message.substr(0, message.find('\n'))};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int group_rank = static_cast<int>(r);
    if (group_rank != rank && (peer < 0 || group_rank == peer)) broken.awaited.push_back(ranks[r]);
  }
  return {Failed::How::Rank, control->explain(broken)};
}

Failed EngineConnection::failed(const std::string& mismatch) {
  place().control->fail(mismatch);
  return {Failed::How::Rank, mismatch};
}

// Gloo knows the CPU alone here; an engine for GPUs takes what lies there.
EngineConnection::OnGpu EngineConnection::to_host(Request& request) const {
  if (!request.output.defined() || !request.output.is_cuda() || gpu_) return {};
  const at::NoGradGuard no_grad;
  OnGpu staged{request.output};
  const bool in_place = request.output.is_same(request.input);
  request.input = request.input.cpu();
  request.output = in_place ? request.input : at::empty_like(request.output, at::kCPU);
  return staged;
}

std::optional<Failed> EngineConnection::do_collective(Request& request, Check check,
                                                      const OnGpu& staged) {
  const Fingerprint print = request.print;
  try {
    if (const auto known = place().control->failure_in_own_words())
      return Failed{Failed::How::Rank, *known};
    const Engine engine{*cpu_, place().rank, place().ranks, place().deadline, in_flight_};
    Compared compared;
    if (check == Check::On) compared = compare(engine, request);
    if (compared.difference) return failed(*compared.difference);
    const bool on_gpu = request.output.defined() && request.output.is_cuda();
    if (!compared.is_done && on_gpu)
      carry_out_on_gpu({*gpu_, engine.rank, engine.ranks, engine.deadline, in_flight_}, request);
    else if (!compared.is_done)
      carry_out(engine, request);
    if (staged.output.defined()) staged.output.copy_(request.output);
    request = {};
    return {};
  } catch (const std::exception& error) {
    return failure_from(error, print, -1);
  }
}

std::shared_ptr<Completion> EngineConnection::completion_of(const Fingerprint& print, int peer) {
  auto completion = std::make_shared<Completion>(
      place().control, place().deadline, [self = weak_from_this(), print, peer] {
        const auto connection = self.lock();
        return connection ? connection->late(print, peer) : describe(print);
      });
  in_flight_.begin(completion);
  return completion;
}

Work EngineConnection::collective(Request request, Check check) {
  OnGpu staged = to_host(request);
  const std::lock_guard lock(mutex_);  // numbers are given in the order of jobs
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

Work EngineConnection::message(Request request, Check check) {
  if (const auto known = place().control->failure_in_own_words())
    Failed{Failed::How::Rank, *known}.raise();
  if (check == Check::Off && request.input.numel() == 0) return {};
  const Fingerprint print = request.print;
  const int peer = request.peer;
  const NoBrokenPipe no_broken_pipe;  // Gloo writes in this thread
  try {
    return print.kind == Kind::Send ? send(std::move(request), check)
                                    : receive(std::move(request), check);
  } catch (const std::exception& error) {
    failure_from(error, print, peer).raise();
  }
}

Work EngineConnection::send(Request request, Check check) {
  to_host(request);
  std::vector<at::Tensor> tensors = {request.input};
  DirectWork::Works works;
  if (check == Check::Off) {
    works.push_back(engine_for(tensors[0]).send(tensors, request.peer, plain_tag(request.tag)));
  } else {
    std::vector<at::Tensor> print = {
        at::empty({sizeof(Fingerprint)}, at::TensorOptions().dtype(at::kByte))};
    std::memcpy(print[0].mutable_data_ptr(), &request.print, sizeof(Fingerprint));
    const std::lock_guard lock(send_mutex_);
    works.push_back(cpu_->send(print, request.peer, print_tag));
    if (tensors[0].numel() > 0)
      works.push_back(engine_for(tensors[0]).send(tensors, request.peer, checked_tag(request.tag)));
    tensors.push_back(print[0]);
  }
  return Work(std::make_shared<DirectWork>(shared_from_this(), request.print, request.peer,
                                           std::move(works), std::move(tensors), nullptr));
}

Work EngineConnection::receive(Request request, Check check) {
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
        engine_for(tensors[0]).recv(tensors, request.peer, plain_tag(request.tag))};
    return Work(std::make_shared<DirectWork>(shared_from_this(), request.print, request.peer,
                                             std::move(works), std::move(tensors),
                                             std::move(then)));
  }
  auto completion = completion_of(request.print, request.peer);
  CheckedReceives& receives = receives_from(request.peer);
  receives.add(std::move(request), completion, std::move(then));
  return Work(std::move(completion));
}

CheckedReceives& EngineConnection::receives_from(int peer) {
  const std::lock_guard lock(mutex_);
  auto& receives = receives_[peer];
  if (!receives) receives = std::make_unique<CheckedReceives>(*this, peer);
  return *receives;
}

// A receive that times out makes Gloo close all connections of the group, here and so at the others:
// whatever waits, waits no longer.
void EngineConnection::break_off(const std::string& reason) {
  if (is_broken_.exchange(true)) return;
  const NoBrokenPipe no_broken_pipe;
  if (gpu_) gpu_->abort();
  try {
    std::vector<at::Tensor> nothing = {at::empty({1}, at::TensorOptions().dtype(at::kByte))};
    cpu_->recv(nothing, place().rank == 0 ? 1 : 0, INT_MAX)->wait(std::chrono::milliseconds(1));
  } catch (const std::exception&) {
    // That is what it is for.
  }
  in_flight_.break_all(reason);
}

}  // namespace trestle::comm
