#include "trestle/device/threads.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "support.h"
#include "trestle/base/error.h"

namespace trestle {
namespace {

using testing::on_virtual;
using testing::same_bits;
using testing::virtual_device;

TEST(ThreadsTest, AWorkerSetsItsOwnNumber) {
  EXPECT_GE(core_count(), 1);
  const int before = at::get_num_threads();
  std::thread([] {
    set_worker_threads(3);
    EXPECT_EQ(at::get_num_threads(), 3);
  }).join();
  EXPECT_EQ(at::get_num_threads(), before);
  set_worker_threads(before);
  EXPECT_THROW(set_worker_threads(0), UsageError);
}

TEST(ThreadsTest, WorkersShareTheThreadsOfTheirCaller) {
  EXPECT_EQ(threads_of_each(1), std::min(core_count(), at::get_num_threads()));
  EXPECT_EQ(threads_of_each(core_count()), 1);
  EXPECT_EQ(threads_of_each(100), 1);
  std::thread([] {
    set_own_threads(1);
    EXPECT_EQ(threads_of_each(1), 1);
  }).join();
}

// Passes a tensor through. Its backward records the thread that ran and the current device there.
class Note : public torch::autograd::Function<Note> {
 public:
  struct Seen {
    std::mutex mutex;
    std::map<std::string, std::set<std::thread::id>> threads;
    int wrong_device = 0;
  };
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& tensor,
                            std::int64_t seen) {
    context->saved_data["seen"] = seen;
    return tensor.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* seen = reinterpret_cast<Seen*>(context->saved_data["seen"].toInt());
    const at::Device device = gradients[0].device();
    const std::lock_guard lock(seen->mutex);
    seen->threads[device.str()].insert(std::this_thread::get_id());
    if (!device.is_cpu() && c10::impl::VirtualGuardImpl(device.type()).getDevice() != device)
      ++seen->wrong_device;
    return {gradients[0], at::Tensor()};
  }
};

TEST(ThreadsTest, EveryDeviceHasOneBackwardThread) {
  Note::Seen seen;
  const auto address = reinterpret_cast<std::int64_t>(&seen);
  for (int round = 0; round < 3; ++round) {
    const auto leaf = torch::ones({3}).requires_grad_();
    auto tensor = Note::apply(leaf, address);
    for (int device = 0; device < 4; ++device)
      tensor = Note::apply(tensor.to(virtual_device(device)), address);
    Note::apply(tensor.cpu(), address).sum().backward();
  }
  std::set<std::thread::id> all;
  for (const auto& [device, threads] : seen.threads) {
    EXPECT_EQ(threads.size(), 1U) << device;
    all.insert(threads.begin(), threads.end());
  }
  EXPECT_EQ(all.size(), 5U);
  EXPECT_EQ(seen.threads["cpu"].count(std::this_thread::get_id()), 1U);
  EXPECT_EQ(seen.wrong_device, 0);
}

TEST(ThreadsTest, ThreadsMayRunBackwardOnTheSameDevicesAtOnce) {
  std::atomic<int> right{0};
  virtual_device(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&right, t] {
      for (int i = 0; i < 100; ++i) {
        const auto weight = torch::ones({8, 8}, on_virtual(t).requires_grad(true));
        (weight.mm(weight).to(virtual_device(3 - t)) * 2)
            .to(virtual_device(1 - t))
            .sum()
            .backward();
        if (weight.grad().sum().item<float>() == 2 * 8 * 8 * 16) ++right;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

TEST(ThreadsTest, AnErrorOnADeviceThreadReachesTheCaller) {
  const auto leaf = torch::ones({3}, on_virtual(0).requires_grad(true));
  const auto doubled = leaf * 2;
  auto result = doubled * doubled;
  result.register_hook(
      [](const at::Tensor&) -> at::Tensor { throw std::out_of_range("from a hook"); });
  EXPECT_THROW(result.sum().backward(), std::out_of_range);
  EXPECT_EQ((leaf * 3).sum().item<float>(), 9);
}

TEST(ThreadsTest, TheCurrentDeviceIsPerThread) {
  const c10::DeviceGuard guard(virtual_device(1));
  EXPECT_EQ(torch::ones({2}, at::Device(at::kPrivateUse1)).device(), virtual_device(1));
  std::thread([] {
    EXPECT_EQ(torch::ones({2}, at::Device(at::kPrivateUse1)).device(), virtual_device(0));
  }).join();
}

}  // namespace
}  // namespace trestle
