#include "trestle/comm/threads/spawn.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <ios>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/comm/rank_error.h"
#include "trestle/device/device.h"
#include "trestle/device/seeded.h"
#include "trestle/device/threads.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;

TEST(Spawn, ReturnsResultOfEachRank) {
  const auto sums = spawn(4, [](World& world) {
    at::Tensor sum = torch::ones({1}) * world.rank();
    world.group().all_reduce(sum).wait();
    return sum.item<double>() + 10 * world.rank();
  });
  EXPECT_EQ(sums, (std::vector<double>{6, 16, 26, 36}));
}

std::vector<at::Tensor> weights_of(const torch::nn::Sequential& net) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : net->parameters())
    weights.push_back(parameter.detach().clone());
  return weights;
}

torch::nn::Sequential small_net() {
  return torch::nn::Sequential(torch::nn::Linear(20, 64), torch::nn::ReLU(),
                               torch::nn::Conv1d(3, 5, 2), torch::nn::Linear(64, 3));
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return true;
}

// The oracle is plain libtorch on one thread.
TEST(Seeded, ThreadRanksMakeTheWeightsOfManualSeedInAProgramWithOneThread) {
  const auto plain = [](std::uint64_t seed) {
    torch::manual_seed(seed);
    return weights_of(small_net());
  };
  const auto of_7 = plain(7), of_8 = plain(8);
  torch::manual_seed(7);
  const at::Tensor numbers_of_7 = torch::randn({4, 8});
  for (int round = 0; round < 5; ++round) {
    const auto made = spawn(8, [&](World& world) {
      const std::uint64_t seed = world.rank() % 2 == 0 ? 7 : 8;
      std::vector<bool> same;
      for (int time = 0; time < 20; ++time) {
        torch::rand({world.rank() + 1});  // other draws of the process
        same.push_back(
            equal(seeded(seed, [] { return weights_of(small_net()); }), seed == 7 ? of_7 : of_8));
        same.push_back(at::equal(seeded(7, [] { return torch::randn({4, 8}); }), numbers_of_7));
      }
      return std::count(same.begin(), same.end(), false);
    });
    EXPECT_EQ(made, (std::vector<std::ptrdiff_t>(8, 0)));
  }
}

TEST(Seeded, LeavesTheGeneratorOfTheProcessAlone) {
  torch::manual_seed(3);
  const at::Tensor expected = torch::randn({5});
  torch::manual_seed(3);
  seeded(7, [] { return torch::randn({100}); });
  EXPECT_TRUE(at::equal(torch::randn({5}), expected));
}

TEST(Seeded, InnerScopeDoesNotMoveNumbersOfOuterOne) {
  const at::Tensor expected = seeded(7, [] { return torch::randn({6}); });
  const at::Tensor both = seeded(7, [] {
    const at::Tensor first = torch::randn({3});
    seeded(8, [] { return torch::randn({9}); });
    return torch::cat({first, torch::randn({3})});
  });
  const at::Tensor plain = seeded(7, [] {
    const at::Tensor first = torch::randn({3});
    return torch::cat({first, torch::randn({3})});
  });
  EXPECT_TRUE(at::equal(both, plain));
  EXPECT_TRUE(at::equal(both.narrow(0, 0, 3), expected.narrow(0, 0, 3)));
}

TEST(Spawn, RefusesTooManyRanksBeforeAllocating) {
  EXPECT_THROW(spawn(2'000'000'000, [](World& world) { return world.rank(); }), UsageError);
  EXPECT_THROW(spawn(-1, [](World& world) { return world.rank(); }), UsageError);
}

// Rank 1 returns at once, or while other ranks wait. No rank waits for the deadline.
void expect_left(const std::function<void(World&)>& others, const std::string& words) {
  for (const auto after : {0ms, 50ms}) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      spawn(3, [&](World& world) {
        if (world.rank() != 1) return others(world);
        world.report_status("read the data");
        std::this_thread::sleep_for(after);
      });
      ADD_FAILURE() << "no rank waited";
    } catch (const RankError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  }
}

TEST(Spawn, NamesReturnedRankToWaitingRanksAtOnce) {
  const std::string returned =
      "rank 1 has returned, having last reported 'read the data', but rank ";
  expect_left([](World& world) { world.group().barrier(); }, returned);
  expect_left(
      [](World& world) {
        at::Tensor tensor = torch::ones({4});
        world.group().all_reduce(tensor).wait();
      },
      " waits for it in all_reduce (sum) number 1 on float32 [4]");
  // Rank 2 waits for rank 0, which is alive and waits for rank 1.
  expect_left(
      [](World& world) {
        at::Tensor tensor = torch::ones({4});
        world.group().receive(tensor, world.rank() == 0 ? 1 : 0, 7).wait();
      },
      returned + "0 waits for it in receive with tag 7 of float32 [4]");
  expect_left(
      [](World& world) {
        if (world.rank() == 2) world.group().send(torch::ones({4}), 1).wait();
      },
      returned + "2 waits for it in send with tag 0 of float32 [4]");
  expect_left(
      [](World& world) {
        if (const comm::Group some = world.make_group({0, 1}); some.valid()) some.barrier();
      },
      returned + "0 waits for it in barrier number 1");
}

TEST(Spawn, NamesAllReturnedRanks) {
  try {
    spawn(3, [](World& world) {
      if (world.rank() != 1) return;
      std::this_thread::sleep_for(50ms);
      world.group().barrier();
    });
    FAIL() << "no rank waited";
  } catch (const RankError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("ranks 0, 2 have returned, but rank 1 waits for them in barrier number 1"),
              std::string::npos)
        << error.what();
  }
}

// A sent message stays available after its sender returned, and unneeded calls are no error.
TEST(Spawn, AllowsEarlyReturnOfUnneededRank) {
  for (const int early : {0, 1}) {
    const auto sums = spawn(2, [&](World& world) {
      const comm::Group& group = world.group();
      at::Tensor sum = torch::ones({2}) * world.rank(), sent = torch::ones({1}) * 7;
      if (world.rank() != early) std::this_thread::sleep_for(50ms);
      auto reduced = group.all_reduce(sum);
      if (world.rank() == early) {
        group.send(sent, 1 - early, 3);
        return at::Tensor();
      }
      group.send(sent, early, 4);  // no rank receives it
      group.all_reduce(sent);      // no other rank calls it
      reduced.wait();
      group.receive(sent, early, 3).wait();
      EXPECT_FALSE(world.failure());
      return sum.sum() + sent;
    });
    EXPECT_EQ(sums[static_cast<std::size_t>(1 - early)].item<double>(), 9);
  }
}

TEST(Spawn, GivesRanksTheirWorld) {
  spawn(3, [](World& world) {
    EXPECT_EQ(world.size(), 3);
    EXPECT_EQ(world.local_rank(), world.rank());
    EXPECT_EQ(world.local_size(), 3);
    EXPECT_EQ(world.restart(), 0);
    EXPECT_EQ(world.backend(), "threads");
    EXPECT_EQ(world.started_by(), "spawn");
    EXPECT_EQ(world.group().rank(), world.rank());
    EXPECT_EQ(world.group().ranks(), (std::vector<int>{0, 1, 2}));
    EXPECT_FALSE(world.failure());
  });
}

// Expects that waiting ranks wake within a second and that the caller gets rank 2's exception.
template <class Wait>
void expect_woken_by_exception(Wait wait) {
  std::atomic<int> woken = 0;
  const auto begin = std::chrono::steady_clock::now();
  try {
    spawn(3, [&](World& world) {
      if (world.rank() == 2) {
        std::this_thread::sleep_for(50ms);
        throw FormatError("no such picture");
      }
      try {
        wait(world);
      } catch (const RankError& error) {
        EXPECT_NE(std::string(error.what()).find("rank 2 failed: no such picture"),
                  std::string::npos)
            << error.what();
        ++woken;
        throw;
      }
    });
    FAIL() << "no failure";
  } catch (const FormatError& error) {
    EXPECT_STREQ(error.what(), "no such picture\n  on rank 2");
  }
  EXPECT_EQ(woken, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
}

TEST(Spawn, ExceptionsOfTheStandardLibraryNameTheirRank) {
  const auto message = [](const auto& error) {
    using Type = std::decay_t<decltype(error)>;
    try {
      spawn(2, [&](World& world) {
        if (world.rank() == 1) throw error;
      });
    } catch (const Type& caught) {
      return std::string(caught.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(std::length_error("long")), "long\n  on rank 1");
  EXPECT_EQ(message(std::overflow_error("full")), "full\n  on rank 1");
  EXPECT_EQ(message(std::out_of_range("far")), "far\n  on rank 1");
}

TEST(Spawn, FailureWakesRanksInCollective) {
  expect_woken_by_exception([](World& world) { world.group().barrier(); });
}

TEST(Spawn, FailureWakesRanksThatWaitForEachOther) {
  expect_woken_by_exception([](World& world) {
    at::Tensor tensor = torch::ones({4});
    world.group().receive(tensor, 1 - world.rank(), 1).wait();
  });
}

TEST(Spawn, KeepsTypeOfOtherExceptions) {
  EXPECT_THROW(spawn(2,
                     [](World& world) {
                       if (world.rank() == 1) throw std::out_of_range("x");
                     }),
               std::out_of_range);
  try {
    spawn(2, [](World& world) {
      if (world.rank() == 1) TORCH_CHECK(false, "bad sizes");
    });
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("on rank 1"), std::string::npos);
  }
}

// The exception that a rank's `work` makes spawn() throw.
template <class Exception>
void expect_rank_in_message(const std::function<void()>& work) {
  try {
    spawn(2, [&](World& world) {
      if (world.rank() == 1) work();
    });
    FAIL() << "no failure";
  } catch (const Exception& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  }
}

TEST(Spawn, NamesRankOfStandardExceptions) {
  expect_rank_in_message<std::out_of_range>([] { std::string("a").at(7); });
  expect_rank_in_message<std::length_error>([] { std::vector<int>().reserve(SIZE_MAX); });
  expect_rank_in_message<std::bad_optional_access>([] { std::optional<int>().value(); });
  expect_rank_in_message<std::bad_alloc>([] { throw std::bad_alloc(); });
  expect_rank_in_message<std::overflow_error>([] { throw std::overflow_error("too much"); });
  expect_rank_in_message<std::ios_base::failure>([] { throw std::ios_base::failure("closed"); });
  try {
    spawn(2, [](World& world) {
      if (world.rank() == 1) std::filesystem::directory_iterator("/nowhere/at/all");
    });
    FAIL();
  } catch (const std::filesystem::filesystem_error& error) {
    EXPECT_NE(std::string(error.what()).find("on rank 1"), std::string::npos) << error.what();
    EXPECT_EQ(error.code(), std::errc::no_such_file_or_directory);
    EXPECT_EQ(error.path1(), "/nowhere/at/all");
  }
}

TEST(Spawn, NamesRankOfOwnTypes) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
    int detail = 0;
  };
  const auto throw_mine = [] {
    Mine mine("my message");
    mine.detail = 42;
    throw mine;
  };
  expect_rank_in_message<ForeignError>(throw_mine);
  try {
    spawn(2, [&](World& world) {
      if (world.rank() == 1) throw_mine();
    });
    FAIL();
  } catch (const ForeignError& error) {
    EXPECT_NE(std::string(error.what()).find("Mine: my message"), std::string::npos)
        << error.what();
    try {
      std::rethrow_if_nested(error);
      FAIL();
    } catch (const Mine& mine) {
      EXPECT_EQ(mine.detail, 42);
    }
  }
  try {
    spawn(2, [](World& world) {
      if (world.rank() == 1) throw 3;
    });
    FAIL();
  } catch (const ForeignError& error) {
    EXPECT_STREQ(error.what(), "rank 1 threw int");
  }
}

TEST(Spawn, CanBeRepeatedAndNested) {
  for (int i = 0; i < 20; ++i) spawn(2, [](World& world) { world.group().barrier(); });
  const auto sums = spawn(2, [](World& outer) {
    const auto inner = spawn(2, [&](World& world) {
      at::Tensor sum = torch::ones({1}) * outer.rank();
      world.group().all_reduce(sum).wait();
      return sum.item<double>();
    });
    at::Tensor sum = torch::full({1}, inner[0]);
    outer.group().all_reduce(sum).wait();
    return sum.item<double>();
  });
  EXPECT_EQ(sums, (std::vector<double>{2, 2}));
}

TEST(Spawn, RefusesInvalidNumbers) {
  EXPECT_THROW(spawn(0, [](World&) {}), UsageError);
  EXPECT_THROW(spawn(-1, [](World&) { return 1; }), UsageError);
  EXPECT_THROW(spawn(100'000, [](World&) {}), UsageError);
  EXPECT_THROW(spawn(2, [](World&) {}, {.threads = -1}), UsageError);
}

TEST(Spawn, SplitsCoresAmongRanks) {
  const int before = at::get_num_threads(), threads = threads_of_each(2);
  spawn(2, [threads](World&) { EXPECT_EQ(at::get_num_threads(), threads); });
  spawn(2, [](World&) { EXPECT_EQ(at::get_num_threads(), 1); }, {.threads = 1});
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(World, RefusesDeviceOfTwoRanksOnAllRanks) {
  const auto devices = virtual_devices(3);
  std::atomic<int> refused = 0;
  spawn(3, [&](World& world) {
    const auto mine = static_cast<std::size_t>(world.rank());
    world.own_devices({cpu_device(), devices[mine]});
    try {
      world.own_devices({cpu_device(), devices[mine == 2 ? 0 : mine]});
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("ranks 0 and 2 both use virtual:0"),
                std::string::npos)
          << error.what();
      ++refused;
    }
    world.own_devices({devices[2 - mine]});  // earlier claims are released
  });
  EXPECT_EQ(refused, 3);
}

TEST(World, RefusesGroupsThatDifferBetweenRanks) {
  EXPECT_THROW(spawn(2, [](World& world) { world.make_group({world.rank()}); }), UsageError);
}

TEST(World, FailWakesAllRanks) {
  spawn(2, [](World& world) {
    if (world.rank() == 0) return world.fail("no space left for the checkpoint");
    EXPECT_THROW(world.group().barrier(), RankError);
    EXPECT_EQ(world.failure(), "no space left for the checkpoint\n  on rank 0");
    EXPECT_EQ(world.failed_rank(), 0);
    world.fail("a second reason\n  on rank 1");
    EXPECT_EQ(world.failure(), "no space left for the checkpoint\n  on rank 0");
  });
}

// Even if the informed ranks return first.
TEST(World, DistinguishesFailedRankFromInformedRanks) {
  try {
    spawn(2, [](World& world) {
      if (world.rank() == 0) world.group().barrier();
      world.fail("no such picture");
      std::this_thread::sleep_for(200ms);
      throw FormatError("no such picture");
    });
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_STREQ(error.what(), "no such picture\n  on rank 1");
  }
}

TEST(World, GroupOutlivesWorld) {
  spawn(2, [](World& world) {
    comm::Group group;
    {
      const World copy = world;
      group = copy.group();
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace trestle
