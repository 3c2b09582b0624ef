#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <vector>

#include "trestle/comm/connection.h"
#include "trestle/comm/threads/thread_hub.h"

namespace trestle::comm {

// A hub as a c10d::Backend, for libtorch's own distributed code (c10d::Reducer): the same
// collectives as ThreadConnection, with c10d's types. Its works have futures. A tensor list must
// hold one tensor, as in c10d's other backends. Tensors may be on the CPU or on virtual devices.
class ThreadBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  ThreadBackend(Connection::Place place, std::shared_ptr<ThreadHub> hub);

  const std::string getBackendName() const override { return "threads"; }
  void setTimeout(std::chrono::milliseconds timeout) override { place_.deadline = timeout; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
#if TORCH_VERSION_MINOR < 15
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
#else
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override;
#endif
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  void abort() override;

 private:
  WorkPtr post(Request request, c10d::OpType type, Tensors results,
               std::function<void()> finish = {});

  Connection::Place place_;
  const std::shared_ptr<ThreadHub> hub_;
};

}  // namespace trestle::comm
