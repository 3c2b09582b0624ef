// Messages and works, on threads where they show more than on processes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "tests/support/run_ranks.h"
#include "trestle/base/error.h"

namespace trestle::testing {
namespace {

using namespace std::chrono_literals;

TEST(Messages, WorkCanBeWaitedForInSeveralThreadsAndAgain) {
  run_ranks(2, [](World& world) {
    at::Tensor tensor = torch::full({4}, static_cast<double>(world.rank()));
    comm::Group group = world.group();
    comm::Work work = world.rank() == 0 ? group.send(tensor, 1) : group.receive(tensor, 0);
    std::thread other([work]() mutable { work.wait(); });
    work.wait();
    other.join();
    work.wait();
    EXPECT_TRUE(work.done());
    EXPECT_EQ(tensor[0].item<float>(), 0.0F);
  });
}

TEST(Messages, WorkIsNotDoneBeforePeerTakesPart) {
  run_ranks(2, [](World& world) {
    comm::Group group = world.group();
    if (world.rank() == 0) {
      comm::Work work = group.send(torch::ones({2}), 1);
      EXPECT_FALSE(work.done());
      group.barrier();
      work.wait();
    } else {
      group.barrier();
      at::Tensor tensor = torch::zeros({2});
      group.receive(tensor, 0).wait();
      EXPECT_EQ(tensor[1].item<float>(), 1.0F);
    }
  });
  EXPECT_TRUE(comm::Work().done());
  comm::Work().wait();
}

TEST(Messages, WaitForEndsAfterItsTime) {
  run_ranks(2, [](World& world) {
    const comm::Group group = world.group();
    at::Tensor tensor = torch::full({2}, static_cast<double>(world.rank()));
    if (world.rank() == 1) {
      group.barrier();
      EXPECT_TRUE(group.send(tensor, 0).wait_for(10s));
      return;
    }
    comm::Work work = group.receive(tensor, 1);
    EXPECT_FALSE(work.wait_for(20ms));
    group.barrier();
    EXPECT_TRUE(work.wait_for(10s));
    EXPECT_EQ(tensor[0].item<float>(), 1.0F);
  });
  EXPECT_TRUE(comm::Work().wait_for(0ms));
}

// A pipeline's messages are unchecked; its tags must not collide with a program's.
TEST(Messages, CheckedAndUncheckedMessagesNeverMatch) {
  const auto exchange = [](World& world) {
    const comm::Group checked = world.group(), bare = checked.with_check(comm::Check::Off);
    if (world.rank() == 0) {
      comm::Work one = bare.send(torch::ones({2}), 1, 5);
      comm::Work two = checked.send(torch::full({2}, 2.0), 1, 5);
      one.wait();
      two.wait();
      return;
    }
    at::Tensor one = torch::zeros({2}), two = torch::zeros({2});
    comm::Work second = checked.receive(two, 0, 5), first = bare.receive(one, 0, 5);
    second.wait();
    first.wait();
    EXPECT_EQ(one[0].item<float>(), 1.0F);
    EXPECT_EQ(two[0].item<float>(), 2.0F);
  };
  run_ranks(2, exchange);
  run_gloo_ranks(2, exchange);
}

TEST(Messages, DeadlineNamesAwaitedRankAndItsLastStatus) {
  try {
    run_ranks(
        2,
        [](World& world) {
          if (world.rank() == 1) {
            world.report_status("backward of stage 1");
            std::this_thread::sleep_for(400ms);
            return;
          }
          at::Tensor tensor = torch::ones({2});
          world.group().receive(tensor, 1, 3).wait();
        },
        200ms);
    FAIL() << "no deadline";
  } catch (const DeadlineError& error) {
    const std::string message = error.what();
    EXPECT_NE(
        message.find(
            "waited longer than 0.2 s: rank 0 in receive with tag 3 of float32 [2] from rank 1"),
        std::string::npos)
        << message;
    EXPECT_NE(message.find("rank 1 last reported 'backward of stage 1'"), std::string::npos)
        << message;
  }
}

TEST(Messages, DeadlineOfCollectiveNamesMissingRanks) {
  try {
    run_ranks(
        3,
        [](World& world) {
          if (world.rank() != 2) return world.group().barrier();
          std::this_thread::sleep_for(400ms);
        },
        200ms);
    FAIL() << "no deadline";
  } catch (const DeadlineError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("barrier number 1, which these ranks have not called: rank 2"),
              std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace trestle::testing
