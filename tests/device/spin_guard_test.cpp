#include "trestle/device/spin_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "trestle/device/threads.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;

// An environment variable for a test, which the tests' own environment may have set.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    if (value == nullptr)
      unsetenv(name);
    else
      setenv(name, value, 1);
  }
  ~Variable() {
    if (before_)
      setenv(name_, before_->c_str(), 1);
    else
      unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// Processes that take every processor several times.
class BusyMachine {
 public:
  BusyMachine() {
    for (int i = 0; i < 3 * core_count(); ++i) {
      const pid_t child = fork();
      if (child == 0)
        while (true) {
        }
      children_.push_back(child);
    }
  }
  ~BusyMachine() {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  BusyMachine(const BusyMachine&) = delete;
  BusyMachine& operator=(const BusyMachine&) = delete;

 private:
  std::vector<pid_t> children_;
};

bool becomes_active(const SpinGuard& guard, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  const at::Tensor x = torch::ones({1 << 20});
  while (!guard.is_active() && std::chrono::steady_clock::now() < end) x.add(1);
  return guard.is_active();
}

TEST(SpinGuard, ActsBesideBusyProcessesAndChangesNoResult) {
  const Variable policy("OMP_WAIT_POLICY", nullptr), spins("GOMP_SPINCOUNT", nullptr);
  torch::manual_seed(0);
  const at::Tensor x = torch::randn({300, 300});
  const at::Tensor before = x.mm(x).softmax(1).sum(0);
  const int threads = at::get_num_threads();
  const BusyMachine busy;
  const SpinGuard guard;
  EXPECT_TRUE(becomes_active(guard, 30s));
  EXPECT_TRUE(torch::equal(x.mm(x).softmax(1).sum(0), before));
  EXPECT_EQ(at::get_num_threads(), threads);
}

TEST(SpinGuard, LeavesTheChoiceToTheEnvironment) {
  const Variable policy("OMP_WAIT_POLICY", "active");
  const BusyMachine busy;
  const SpinGuard guard;
  EXPECT_FALSE(becomes_active(guard, 1s));
}

}  // namespace
}  // namespace trestle
