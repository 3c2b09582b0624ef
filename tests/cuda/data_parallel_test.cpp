// DataParallel and SyncBatchNorm on asynchronous devices, compared with plain libtorch on the CPU.
#include "trestle/data_parallel/data_parallel.h"

#include "tests/cuda/async_devices.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/transfer.h"
#include "trestle/sync_batch_norm/sync_batch_norm.h"

namespace trestle {
namespace {

using support::async_device;
using support::async_devices;

class DataParallelStreams : public support::AsyncDevices {};

torch::nn::Sequential net() {
  torch::nn::Sequential made(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
  made->to(at::kDouble);
  return made;
}

TEST_F(DataParallelStreams, TrainsAsPlainModel) {
  for (const int count : {2, 3}) {
    torch::manual_seed(4);
    torch::nn::Sequential plain = net();
    torch::nn::Sequential own(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone()));
    DataParallel parallel(own, async_devices(count));
    torch::optim::SGD ours(own->parameters(), 0.1), theirs(plain->parameters(), 0.1);
    // The second step runs on a stream of the caller.
    std::optional<device::StreamScope> stream;
    for (int step = 0; step < 3; ++step) {
      if (step == 1) {
        device::synchronize(async_device(0));
        stream.emplace(std::vector<c10::Stream>{support::another_stream(async_device(0))});
      }
      const at::Tensor x = torch::randn({7, 6}, at::kDouble), y = torch::randn({7, 3}, at::kDouble);
      ours.zero_grad();
      theirs.zero_grad();
      support::keep_busy(async_device(0));
      torch::mse_loss(parallel(x), to_device(y, async_device(0))).backward();
      torch::mse_loss(plain->forward(x), y).backward();
      ours.step();
      theirs.step();
    }
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_TRUE(at::allclose(plain->parameters()[i], own->parameters()[i].cpu(), 1e-9, 1e-9));
    if (stream) device::synchronize(async_device(0));
  }
}

TEST_F(DataParallelStreams, SyncBatchNormEqualsWholeBatch) {
  torch::manual_seed(5);
  const int ranks =
      support::on_cuda() ? std::min(3, static_cast<int>(torch::cuda::device_count())) : 3;
  const at::Tensor x = torch::randn({2 * ranks, 4, 3}), g = torch::randn({2 * ranks, 4, 3});
  torch::nn::BatchNorm1d plain(4);
  at::Tensor whole = x.clone().requires_grad_();
  const at::Tensor expected = plain->forward(whole);
  (expected * g).sum().backward();
  const auto devices = async_devices(ranks);
  spawn(ranks, [&](World& world) {
    const at::Device device = devices[static_cast<std::size_t>(world.rank())].torch;
    SyncBatchNorm norm(torch::nn::BatchNormOptions(4), world.group());
    norm->to(device);
    support::keep_busy(device);
    at::Tensor part = to_device(x.narrow(0, 2 * world.rank(), 2), device).requires_grad_();
    const at::Tensor y = norm->forward(part);
    (y * to_device(g.narrow(0, 2 * world.rank(), 2), device)).sum().backward();
    EXPECT_TRUE(
        at::allclose(expected.narrow(0, 2 * world.rank(), 2), to_device(y, at::kCPU), 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(whole.grad().narrow(0, 2 * world.rank(), 2),
                             to_device(part.grad(), at::kCPU), 1e-3, 1e-5));
    EXPECT_TRUE(
        at::allclose(plain->running_var, to_device(norm->running_var, at::kCPU), 1e-5, 1e-6));
  });
}

}  // namespace
}  // namespace trestle
