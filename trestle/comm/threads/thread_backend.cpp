#include "trestle/comm/threads/thread_backend.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/threads/thread_connection.h"

namespace trestle::comm {
namespace {

Reduce reduce_of(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return Reduce::Sum;
    case c10d::ReduceOp::PRODUCT:
      return Reduce::Product;
    case c10d::ReduceOp::MIN:
      return Reduce::Min;
    case c10d::ReduceOp::MAX:
      return Reduce::Max;
    default:
      throw UsageError("ranks that are threads support the reductions sum, product, min and max",
                       {.hint = "For an average, divide the sum."});
  }
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1)
    throw UsageError(text("expected a list of one tensor, got ", tensors.size()));
  return tensors[0];
}

// Wraps a Completion as c10d's Work, with a future.
class ThreadWork : public c10d::Work {
 public:
  ThreadWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : Work(rank, type),
        results_(std::move(results)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors())) {}

  void follow(std::shared_ptr<Completion> completion) { completion_ = std::move(completion); }

  void end(const std::optional<Failed>& failed) {
    std::exception_ptr error;
    if (failed) error = std::make_exception_ptr(RankError(failed->reason));
    finish(error);
    if (error)
      future_->setErrorIfNeeded(error);
    else
      future_->markCompleted(c10::IValue(results_));
  }

  bool wait(std::chrono::milliseconds) override {
    completion_->wait();
    return true;
  }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const std::vector<at::Tensor> results_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::shared_ptr<Completion> completion_;
};

}  // namespace

ThreadBackend::ThreadBackend(Connection::Place place, std::shared_ptr<ThreadHub> hub)
    : Backend(place.rank, hub->size()), place_(std::move(place)), hub_(std::move(hub)) {}

ThreadBackend::WorkPtr ThreadBackend::post(Request request, c10d::OpType type, Tensors results,
                                           std::function<void()> finish) {
  const bool is_message = request.print.kind == Kind::Send || request.print.kind == Kind::Receive;
  auto completion = is_message ? message_completion(place_, request)
                               : collective_completion(place_, hub_, request);
  auto work = c10::make_intrusive<ThreadWork>(rank_, type, std::move(results));
  work->follow(completion);
  completion->then([work, finish = std::move(finish)](const std::optional<Failed>& failed) {
    if (finish && !failed) finish();
    work->end(failed);
  });
  const auto mismatch = is_message
                            ? hub_->message(rank_, std::move(request), std::move(completion))
                            : hub_->collective(rank_, std::move(request), std::move(completion));
  if (mismatch) place_.control->fail(*mismatch);
  return work;
}

ThreadBackend::WorkPtr ThreadBackend::broadcast(Tensors& tensors,
                                                const c10d::BroadcastOptions& options) {
  return post(broadcast_request(only(tensors), static_cast<int>(options.rootRank), size_),
              c10d::OpType::BROADCAST, tensors);
}

ThreadBackend::WorkPtr ThreadBackend::allreduce(Tensors& tensors,
                                                const c10d::AllreduceOptions& options) {
  return post(all_reduce_request(only(tensors), reduce_of(options.reduceOp)),
              c10d::OpType::ALLREDUCE, tensors);
}

ThreadBackend::WorkPtr ThreadBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions&) {
  if (outputs.size() != 1) throw UsageError("allgather takes one tensor at a time");
  const at::Tensor& input = only(inputs);
  if (outputs[0].size() != static_cast<std::size_t>(size_))
    throw UsageError(text("allgather into ", outputs[0].size(), " tensors, for ", size_, " ranks"));
  for (const at::Tensor& output : outputs[0]) {
    if (output.sizes() != input.sizes())
      throw UsageError("allgather: the outputs' shape differs from the input's");
  }
  auto sizes = input.sizes().vec();
  sizes.insert(sizes.begin(), size_);
  const at::Tensor gathered = at::empty(sizes, input.options());
  return post(all_gather_request(gathered, input.contiguous(), size_), c10d::OpType::ALLGATHER,
              outputs[0], [gathered, outputs = outputs[0]]() mutable {
                const at::NoGradGuard no_grad;
                for (std::size_t r = 0; r < outputs.size(); ++r)
                  outputs[r].copy_(gathered[static_cast<std::int64_t>(r)]);
              });
}

#if TORCH_VERSION_MINOR < 15
#define TRESTLE_ALL_GATHER _allgather_base
#define TRESTLE_REDUCE_SCATTER _reduce_scatter_base
#else
#define TRESTLE_ALL_GATHER all_gather_single
#define TRESTLE_REDUCE_SCATTER reduce_scatter_single
#endif

ThreadBackend::WorkPtr ThreadBackend::TRESTLE_ALL_GATHER(at::Tensor& output, at::Tensor& input,
                                                         const c10d::AllgatherOptions&) {
  return post(all_gather_request(output, input, size_), c10d::OpType::_ALLGATHER_BASE, {output});
}

ThreadBackend::WorkPtr ThreadBackend::TRESTLE_REDUCE_SCATTER(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return post(reduce_scatter_request(output, input, reduce_of(options.reduceOp), size_),
              c10d::OpType::_REDUCE_SCATTER_BASE, {output});
}

ThreadBackend::WorkPtr ThreadBackend::barrier(const c10d::BarrierOptions&) {
  return post(barrier_request(), c10d::OpType::BARRIER, {});
}

ThreadBackend::WorkPtr ThreadBackend::send(Tensors& tensors, int to, int tag) {
  return post(message_request(Kind::Send, only(tensors), to, tag, rank_, size_), c10d::OpType::SEND,
              tensors);
}

ThreadBackend::WorkPtr ThreadBackend::recv(Tensors& tensors, int from, int tag) {
  return post(message_request(Kind::Receive, only(tensors), from, tag, rank_, size_),
              c10d::OpType::RECV, tensors);
}

void ThreadBackend::abort() {
  place_.control->fail(
      text("rank ", place_.ranks[static_cast<std::size_t>(rank_)], " aborted its communication"));
}

}  // namespace trestle::comm
