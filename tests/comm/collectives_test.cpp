// Collectives on thread ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/comm/collective_checks.h"
#include "tests/support/run_ranks.h"
#include "trestle/device/device.h"

namespace trestle::testing {
namespace {

class ThreadRanks : public ::testing::TestWithParam<int> {};

#define CHECK_ON_THREADS(name, check) \
  TEST_P(ThreadRanks, name) { run_ranks(GetParam(), check); }

CHECK_ON_THREADS(Broadcast, check_broadcast)
CHECK_ON_THREADS(AllReduce, check_all_reduce)
CHECK_ON_THREADS(ReduceScatter, check_reduce_scatter)
CHECK_ON_THREADS(AllGather, check_all_gather)
CHECK_ON_THREADS(AllGatherUneven, check_all_gather_uneven)
CHECK_ON_THREADS(AllToAll, check_all_to_all)
CHECK_ON_THREADS(Bytes, check_bytes)
CHECK_ON_THREADS(Messages, check_messages)
CHECK_ON_THREADS(EmptyTensors, check_empty_tensors)
CHECK_ON_THREADS(MemoryFormats, check_memory_formats)
CHECK_ON_THREADS(ManyInFlight, check_many_in_flight)
CHECK_ON_THREADS(DroppedWorks, check_dropped_works)
CHECK_ON_THREADS(Groups, check_groups)
CHECK_ON_THREADS(WithoutFingerprints, check_without_fingerprints)
CHECK_ON_THREADS(RefusedTensors, check_refused_tensors)

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadRanks, ::testing::Values(1, 2, 3, 4));

// The sum is (rank 0 + rank 1) + (rank 2 + rank 3), whichever rank comes last.
TEST(ThreadCollectives, SumsNeighboursFirstWhicheverRankIsLate) {
  std::vector<at::Tensor> inputs;
  for (int r = 0; r < 4; ++r) inputs.push_back(torch::randn({1000}) * std::pow(10.0, r));
  const at::Tensor expected = (inputs[0] + inputs[1]) + (inputs[2] + inputs[3]);
  for (int late = 0; late < 4; ++late) {
    run_ranks(4, [&](World& world) {
      at::Tensor sum = inputs[static_cast<std::size_t>(world.rank())].clone();
      if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      world.group().all_reduce(sum).wait();
      EXPECT_TRUE(torch::equal(sum, expected));
    });
  }
}

// All ranks pass the same tensor, which only threads can.
TEST(ThreadCollectives, AcceptTensorSharedByRanks) {
  at::Tensor shared = torch::ones({8});
  run_ranks(4, [&](World& world) {
    world.group().all_reduce(shared).wait();
    EXPECT_TRUE(shared.eq(4).all().item<bool>());
  });
}

TEST(ThreadCollectives, LeaveMetersOfVirtualDevicesUnchanged) {
  const auto devices = virtual_devices(3);
  run_ranks(3, [&](World& world) {
    const at::Device device = devices[static_cast<std::size_t>(world.rank())].torch;
    world.own_devices({devices[static_cast<std::size_t>(world.rank())]});
    comm::Group group = world.group();
    at::Tensor mine = torch::full({1024}, world.rank() + 1.0, device),
               all = torch::empty({3 * 1024}, device);
    reset_peak_memory(device);
    const Bytes before = memory_usage(device).current;
    group.all_reduce(mine).wait();
    group.all_gather(all, mine).wait();
    group.reduce_scatter(mine, all).wait();
    group.broadcast(mine, 1).wait();
    comm::Work receive;
    if (world.rank() == 1) receive = group.receive(mine, 0);
    if (world.rank() == 0) group.send(mine, 1).wait();
    receive.wait();
    EXPECT_EQ(memory_usage(device).current, before);
    EXPECT_EQ(memory_usage(device).peak, before);
    EXPECT_TRUE(mine.cpu().eq(18).all().item<bool>()) << mine.cpu();
  });
}

}  // namespace
}  // namespace trestle::testing
