// The thread backend's interface for libtorch's own code.
#include "trestle/comm/threads/thread_backend.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "trestle/comm/rank_error.h"
#include "trestle/comm/threads/thread_board.h"

namespace trestle::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

template <class Function>
void on_backends(int size, Function function) {
  const auto board = std::make_shared<ThreadBoard>(size);
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  const auto hub = board->hub(0, ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const Connection::Place place{r, ranks, std::chrono::seconds(10),
                                    std::make_shared<ThreadControlPlane>(board, r)};
      function(*c10::make_intrusive<ThreadBackend>(place, hub));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(ThreadBackend, WorkHasFuture) {
  on_backends(3, [](ThreadBackend& backend) {
    Tensors tensors = {torch::full({4}, backend.getRank() + 1.0)};
    auto work = backend.allreduce(tensors, {});
    auto doubled = work->getFuture()->then(
        [](c10::ivalue::Future& future) { return future.value().toTensorVector()[0] * 2; },
        c10::TensorType::get());
    doubled->wait();
    EXPECT_TRUE(doubled->value().toTensor().eq(12).all().item<bool>());
    EXPECT_TRUE(work->isCompleted() && work->isSuccess());
    work->wait();
  });
}

TEST(ThreadBackend, RunsCollectivesOfTensorListsAndMessages) {
  on_backends(2, [](ThreadBackend& backend) {
    const double rank = backend.getRank();
    std::vector<Tensors> outputs = {{torch::empty({2}), torch::empty({2})}};
    Tensors inputs = {torch::full({2}, rank)};
    backend.allgather(outputs, inputs, {})->wait();
    EXPECT_EQ(outputs[0][1][0].item<double>(), 1.0);
    Tensors message = {torch::full({2}, rank)};
    (rank == 0 ? backend.send(message, 1, 0) : backend.recv(message, 0, 0))->wait();
    EXPECT_EQ(message[0][1].item<double>(), 0.0);
    backend.barrier({})->wait();
    Tensors root = {torch::full({2}, rank)};
    c10d::BroadcastOptions options;
    options.rootRank = 1;
    backend.broadcast(root, options)->wait();
    EXPECT_EQ(root[0][0].item<double>(), 1.0);
  });
}

TEST(ThreadBackend, FailureReachesFuture) {
  on_backends(2, [](ThreadBackend& backend) {
    Tensors tensors = {torch::ones({2 + backend.getRank()})};
    auto work = backend.allreduce(tensors, {});
    EXPECT_THROW(work->wait(), RankError);
    EXPECT_TRUE(work->getFuture()->hasError());
  });
}

}  // namespace
}  // namespace trestle::comm
