#include "trestle/comm/job_thread.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "trestle/device/threads.h"

namespace trestle::comm {
namespace {

TEST(JobThread, FinishesAllJobsBeforeItEnds) {
  std::atomic<int> done = 0;
  {
    std::vector<std::unique_ptr<JobThread>> threads;
    for (int i = 0; i < 10; ++i)
      threads.push_back(std::make_unique<JobThread>([] { set_own_threads(1); }));
    for (auto& thread : threads) {
      for (int job = 0; job < 5; ++job) thread->add([&] { ++done; });
    }
  }
  EXPECT_EQ(done, 50);
}

TEST(JobThread, RunsItsSetUpBeforeTheFirstJob) {
  int threads = 0;
  JobThread thread([] { set_own_threads(2); });
  thread.add([&] { threads = at::get_num_threads(); });
  ASSERT_TRUE(thread.drain(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
  EXPECT_EQ(threads, 2);
}

}  // namespace
}  // namespace trestle::comm
