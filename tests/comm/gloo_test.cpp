// Ranks that meet at a port and communicate by Gloo. Most are threads of this process, which start
// faster and run the same code.
#include <gtest/gtest.h>
#include <sched.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/comm/collective_checks.h"
#include "tests/comm/mismatches.h"
#include "tests/support/run_ranks.h"
#include "trestle/base/error.h"
#include "trestle/comm/rank_error.h"
#include "trestle/device/device.h"

namespace trestle::testing {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

class GlooRanks : public ::testing::TestWithParam<int> {};

TEST_P(GlooRanks, RunCollectivesOnThreads) { run_gloo_ranks(GetParam(), check_collectives); }
TEST_P(GlooRanks, RunCollectivesOnProcesses) { run_process_ranks(GetParam(), check_collectives); }

// Tensors larger than a chunk: sums of neighbours, then of their neighbours, in place, apart and
// overlapping, to the bit.
void check_large(World& world) {
  const comm::Group& group = world.group();
  const int size = world.size(), rank = world.rank();
  constexpr std::int64_t part = 700'003;
  const auto numbers = [&](int of) {
    return (at::arange(size * part, at::kFloat) + 1000 * of).sqrt();
  };
  const auto own = [&](const at::Tensor& whole) { return whole.narrow(0, rank * part, part); };
  std::vector<at::Tensor> sums;
  for (int r = 0; r < size; ++r) sums.push_back(numbers(r));
  while (sums.size() > 1) {
    std::vector<at::Tensor> pairs;
    for (std::size_t r = 0; r < sums.size(); r += 2)
      pairs.push_back(r + 1 < sums.size() ? sums[r] + sums[r + 1] : sums[r]);
    sums = pairs;
  }
  const at::Tensor sum = sums[0];

  const at::Tensor input = numbers(rank);
  // not a multiple of the number of ranks
  at::Tensor reduced = input.narrow(0, 1, size * part - 1).clone();
  group.all_reduce(reduced).wait();
  EXPECT_TRUE(torch::equal(reduced, sum.narrow(0, 1, size * part - 1)));
  at::Tensor scattered = at::empty({part});
  group.reduce_scatter(scattered, input).wait();
  EXPECT_TRUE(torch::equal(scattered, own(sum)));
  EXPECT_TRUE(torch::equal(input, numbers(rank))) << "the input changed";
  at::Tensor in_place = input.clone(), elsewhere = input.clone();
  group.reduce_scatter(own(in_place), in_place).wait();
  EXPECT_TRUE(torch::equal(own(in_place), own(sum)));
  const at::Tensor other = elsewhere.narrow(0, (rank + 1) % size * part, part);
  group.reduce_scatter(other, elsewhere).wait();
  EXPECT_TRUE(torch::equal(other, own(sum)));

  at::Tensor gathered = at::zeros({size * part});
  group.all_gather(gathered, scattered).wait();
  EXPECT_TRUE(torch::equal(gathered, sum));
  group.all_gather(in_place, own(in_place)).wait();
  EXPECT_TRUE(torch::equal(in_place, sum));
  group.all_gather(elsewhere, other).wait();
  EXPECT_TRUE(torch::equal(elsewhere, sum));
}
TEST_P(GlooRanks, ReduceLargeTensorsToSameBits) { run_gloo_ranks(GetParam(), check_large); }

INSTANTIATE_TEST_SUITE_P(Sizes, GlooRanks, ::testing::Values(1, 2, 3, 4));

class GlooMismatch : public ::testing::TestWithParam<Mismatch> {};

TEST_P(GlooMismatch, IsReportedOnAllRanks) {
  run_gloo_ranks(2, [&](World& world) { expect_mismatch(world, GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GlooMismatch, ::testing::ValuesIn(mismatches()),
                         [](const auto& info) { return info.param.name; });

TEST(Gloo, MismatchDoesNotEndOtherProcess) {
  run_process_ranks(2, [](World& world) { expect_mismatch(world, mismatches()[8]); });
}

// The same bits as from thread ranks.
void check_sums_of_pairs(World& world) {
  std::vector<at::Tensor> inputs;
  for (int r = 0; r < 5; ++r) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(r);
    inputs.push_back(torch::randn({10'001}, generator) * std::pow(10.0, r));
  }
  const at::Tensor expected = ((inputs[0] + inputs[1]) + (inputs[2] + inputs[3])) + inputs[4];
  const at::Tensor& input = inputs[static_cast<std::size_t>(world.rank())];
  at::Tensor large = input.clone(), small = input.narrow(0, 0, 100).clone();
  world.group().all_reduce(large).wait();
  world.group().all_reduce(small).wait();
  EXPECT_TRUE(torch::equal(large, expected));
  EXPECT_TRUE(torch::equal(small, expected.narrow(0, 0, 100)));
  at::Tensor piece = torch::empty({2000});
  world.group().reduce_scatter(piece, input.narrow(0, 0, 10'000).clone()).wait();
  EXPECT_TRUE(torch::equal(piece, expected.narrow(0, 2000 * world.rank(), 2000)));
}
TEST(Gloo, SumsNeighboursFirst) {
  run_gloo_ranks(5, check_sums_of_pairs);
  run_ranks(5, check_sums_of_pairs);
}

TEST(Gloo, LeavesMetersOfVirtualDevicesUnchanged) {
  const auto devices = virtual_devices(2);
  run_gloo_ranks(2, [&](World& world) {
    const at::Device device = devices[static_cast<std::size_t>(world.rank())].torch;
    world.own_devices({devices[static_cast<std::size_t>(world.rank())]});
    const comm::Group& group = world.group();
    at::Tensor mine = torch::full({100, 100}, world.rank() + 1.0, device);
    reset_peak_memory(device);
    const Bytes before = memory_usage(device).current;
    group.all_reduce(mine).wait();
    for (const auto check : {comm::Check::On, comm::Check::Off}) {
      const comm::Group pair = group.with_check(check);
      (world.rank() == 0 ? pair.send(mine, 1) : pair.receive(mine, 0)).wait();
    }
    EXPECT_EQ(memory_usage(device).current, before);
    EXPECT_EQ(memory_usage(device).peak, before);
    EXPECT_TRUE(mine.cpu().eq(3).all().item<bool>());
  });
}

TEST(Gloo, RefusesDeviceOfTwoRanks) {
  const auto devices = virtual_devices(1);
  std::atomic<int> refused = 0;
  run_gloo_ranks(2, [&](World& world) {
    world.own_devices({cpu_device()});
    try {
      world.own_devices({devices[0]});
    } catch (const UsageError&) {
      ++refused;
    }
  });
  EXPECT_EQ(refused, 2);
}

TEST(Gloo, SendsMessagesWithoutFingerprint) {
  run_gloo_ranks(2, [](World& world) {
    const comm::Group group = world.group().with_check(comm::Check::Off);
    at::Tensor tensor = torch::full({1024}, static_cast<double>(world.rank()));
    for (int i = 0; i < 50; ++i) {
      if (world.rank() == 0) {
        group.send(tensor, 1).wait();
        group.receive(tensor, 1).wait();
      } else {
        group.receive(tensor, 0).wait();
        tensor.add_(1);
        group.send(tensor, 0).wait();
      }
    }
    EXPECT_EQ(tensor[0].item<float>(), 50.0F);
    // done() becomes true without a wait, and two threads may wait for one work.
    at::Tensor last = torch::full({4}, 7.0 + world.rank());
    comm::Work work = world.rank() == 0 ? group.send(last, 1) : group.receive(last, 0);
    std::thread other([work]() mutable { work.wait(); });
    const auto end = steady_clock::now() + 10s;
    while (!work.done() && steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(work.done());
    other.join();
    EXPECT_EQ(last[0].item<float>(), 7.0F);
  });
}

// The scheduling policies of Gloo's threads in this process.
std::vector<int> policies_of_loops() {
  std::vector<int> policies;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "gloo_tcp_loop")
      policies.push_back(sched_getscheduler(std::stoi(task.path().filename())));
  }
  return policies;
}

TEST(Gloo, ItsThreadsDoNotInterruptTheirRanks) {
  std::atomic<int> loops = 0;
  run_gloo_ranks(2, [&](World& world) {
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    for (const int policy : policies_of_loops()) {
      EXPECT_EQ(policy, SCHED_BATCH);
      ++loops;
    }
    world.group().barrier();
  });
  EXPECT_GE(loops, 2) << "one for each of two ranks, and each may see those of both";
}

TEST(Gloo, PollsEachMessageByItself) {
  run_gloo_ranks(2, [](World& world) {
    const comm::Group group = world.group().with_check(comm::Check::Off);
    at::Tensor late = torch::ones({4}), dropped = torch::ones({4}), early = torch::ones({4});
    if (world.rank() == 1) {
      group.send(early, 0, 3).wait();
      world.group().barrier();
      group.send(late, 0, 1).wait();
      group.send(dropped, 0, 2).wait();
      return;
    }
    group.receive(dropped, 1, 2);
    comm::Work first = group.receive(late, 1, 1);
    EXPECT_FALSE(first.done());
    comm::Work second = group.receive(early, 1, 3);
    const auto end = steady_clock::now() + 10s;
    while (!second.done() && steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(second.done());
    EXPECT_FALSE(first.done());
    world.group().barrier();
    first.wait();
  });
}

TEST(Gloo, WaitForKeepsItsTimeBesideAWait) {
  run_gloo_ranks(2, [](World& world) {
    const comm::Group group = world.group().with_check(comm::Check::Off);
    at::Tensor tensor = torch::full({4}, static_cast<double>(world.rank()));
    if (world.rank() == 1) {
      world.group().barrier();
      group.send(tensor, 0).wait();
      return;
    }
    comm::Work work = group.receive(tensor, 1);
    std::thread other([work]() mutable { work.wait(); });
    std::this_thread::sleep_for(50ms);
    const auto begin = steady_clock::now();
    EXPECT_FALSE(work.wait_for(100ms));
    EXPECT_LT(steady_clock::now() - begin, 5s);
    world.group().barrier();
    other.join();
    EXPECT_TRUE(work.wait_for(0ms));
    EXPECT_EQ(tensor[0].item<float>(), 1.0F);
  });
}

// Gloo closes the connections after a time-out; the reason that the rank then gives reaches all.
TEST(Gloo, WaitForLetsTheRankGiveTheReason) {
  const auto processes = run_rank_processes(2, [] {
    World world = init({.deadline = 30s});
    const comm::Group group = world.group().with_check(comm::Check::Off);
    at::Tensor tensor = torch::full({2}, static_cast<double>(world.rank()));
    comm::Work in_time = world.rank() == 1 ? group.send(tensor, 0, 1) : group.receive(tensor, 1, 1);
    EXPECT_TRUE(in_time.wait_for(10s));
    EXPECT_EQ(tensor[0].item<float>(), 1.0F);
    comm::Work late = group.receive(tensor, 1 - world.rank(), 2);
    try {
      if (world.rank() == 1) {
        late.wait();
      } else {
        EXPECT_FALSE(late.wait_for(300ms));
        group.fail("rank 1 is too late for me");
        group.receive(tensor, 1, 3).wait();
      }
      ADD_FAILURE() << "no error";
    } catch (const RankError& error) {
      EXPECT_NE(std::string(error.what()).find("too late for me"), std::string::npos)
          << error.what();
    }
  });
  for (const auto& process : processes) EXPECT_EQ(process.exit_code, 0) << process.output;
}

TEST(Gloo, AllowsRanksToEndAtDifferentTimes) {
  run_gloo_ranks(3, [](World& world) {
    world.group().barrier();
    std::this_thread::sleep_for(300ms * world.rank());
    EXPECT_FALSE(world.failure());
    world.report_status("near the end");
  });
}

TEST(Gloo, NamesLeftRankToWaitingRank) {
  run_gloo_ranks(2, [](World& world) {
    if (world.rank() == 1) return;
    at::Tensor tensor = torch::ones({4});
    try {
      world.group().receive(tensor, 1).wait();
      ADD_FAILURE() << "no error";
    } catch (const RankError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 has left"), std::string::npos)
          << error.what();
    }
  });
}

// Measures from rank 2's failure to the last rank's error, in a collective and in messages between
// live ranks.
void expect_woken(const std::function<void(World&)>& fails, const std::string& words) {
  steady_clock::time_point failed;
  run_gloo_ranks(4, [&](World& world) {
    const comm::Group& group = world.group();
    group.barrier();
    at::Tensor tensor = torch::ones({4});
    if (world.rank() == 2) {
      std::this_thread::sleep_for(50ms);
      failed = steady_clock::now();
      return fails(world);
    }
    try {
      if (world.rank() == 0) group.receive(tensor, 1, 5).wait();
      if (world.rank() == 1) group.with_check(comm::Check::Off).receive(tensor, 0, 6).wait();
      if (world.rank() == 3) group.all_reduce(tensor).wait();
      ADD_FAILURE() << "no error on rank " << world.rank();
    } catch (const RankError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
          << "rank " << world.rank() << ": " << error.what();
      EXPECT_LT(steady_clock::now() - failed, 1s);
    }
  });
}

TEST(Gloo, FailureWakesAllRanks) {
  expect_woken([](World& world) { world.fail("no space left on rank 2's disk"); },
               "no space left on rank 2's disk");
}

TEST(Gloo, ExceptionThatEndsRankWakesAllRanks) {
  try {
    expect_woken([](World&) { throw FormatError("no such picture"); },
                 "rank 2 ended with an exception");
    FAIL();
  } catch (const FormatError&) {
  }
}

TEST(Gloo, DeadlineNamesAwaitedRankOnAllRanks) {
  std::atomic<int> told = 0;
  run_gloo_ranks(
      3,
      [&](World& world) {
        const comm::Group& group = world.group();
        at::Tensor tensor = torch::ones({2});
        if (world.rank() == 1) {
          world.report_status("reading data");
          const auto end = steady_clock::now() + 3s;
          while (!world.failure() && steady_clock::now() < end) std::this_thread::sleep_for(5ms);
          EXPECT_TRUE(world.failure());
          return;
        }
        try {
          if (world.rank() == 0) group.with_check(comm::Check::Off).receive(tensor, 1, 3).wait();
          std::this_thread::sleep_for(600ms);
          group.receive(tensor, 1).wait();
        } catch (const DeadlineError& error) {
          ++told;
          const std::string message = error.what();
          EXPECT_NE(
              message.find("waited longer than 0.5 s: rank 0 in receive with tag 3 of float32 [2] "
                           "from rank 1; rank 1 last reported 'reading data'"),
              std::string::npos)
              << message;
        } catch (const RankError& error) {
          ++told;
          EXPECT_EQ(world.rank(), 2);
          EXPECT_NE(std::string(error.what()).find("rank 0 in receive"), std::string::npos)
              << error.what();
        }
      },
      500ms);
  EXPECT_EQ(told, 2);
}

TEST(Gloo, SingleRankNeedsNoPort) {
  World world = init({.environment = rank_environment(0, 1, 0)});
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.backend(), "gloo");
  EXPECT_EQ(world.started_by(), "variables");
  check_all_reduce(world);
}

TEST(Gloo, ReplacesMissingNcclWithOneMessage) {
  ::testing::internal::CaptureStderr();
  run_gloo_ranks(1, [](World&) {});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  World world = init({.backend = "nccl", .environment = rank_environment(0, 1, 0)});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, world.backend() == "nccl"
                      ? ""
                      : "trestle: this libtorch has no NCCL; the ranks use Gloo instead\n");
  EXPECT_THROW(init({.backend = "mpi", .environment = rank_environment(0, 1, 0)}), UsageError);
}

}  // namespace
}  // namespace trestle::testing
