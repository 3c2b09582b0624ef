// The threads that run ranks' actions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "trestle/pipeline/worker.h"

namespace trestle::pipeline {
namespace {

TEST(Worker, FinishesAllJobs) {
  std::atomic<int> done = 0;
  {
    std::vector<std::unique_ptr<Worker>> workers;
    for (int i = 0; i < 10; ++i) workers.push_back(std::make_unique<Worker>(1));
    for (auto& worker : workers) {
      for (int job = 0; job < 5; ++job) worker->run([&] { ++done; });
    }
  }
  EXPECT_EQ(done, 50);
}

}  // namespace
}  // namespace trestle::pipeline
