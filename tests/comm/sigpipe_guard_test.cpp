#include "trestle/comm/sigpipe_guard.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

namespace trestle::comm {
namespace {

// Writes to a connection whose peer is closed; returns the errno.
int write_to_nobody() {
  std::array<int, 2> ends = {};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  close(ends[1]);
  const ssize_t written = write(ends[0], "x", 1);
  const int error = errno;
  close(ends[0]);
  return written < 0 ? error : 0;
}

bool is_blocked() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, SIGPIPE) == 1;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

class SigpipeGuardTest : public ::testing::Test {
 protected:
  // the default action ends the process
  void SetUp() override { before_ = signal(SIGPIPE, SIG_DFL); }
  void TearDown() override { signal(SIGPIPE, before_); }

 private:
  void (*before_)(int) = nullptr;
};

TEST_F(SigpipeGuardTest, TurnsSignalIntoErrorAndClearsIt) {
  {
    const SigpipeGuard sigpipe_guard;
    EXPECT_EQ(write_to_nobody(), EPIPE);
    {
      const SigpipeGuard within;
      EXPECT_EQ(write_to_nobody(), EPIPE);
    }
    EXPECT_TRUE(is_blocked());
  }
  EXPECT_FALSE(is_pending());
  EXPECT_FALSE(is_blocked());
}

TEST_F(SigpipeGuardTest, IsInheritedByThreadsStartedMeanwhile) {
  std::thread thread;
  {
    const SigpipeGuard sigpipe_guard;
    thread = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_EQ(write_to_nobody(), EPIPE);
    });
  }
  EXPECT_FALSE(is_blocked());
  thread.join();
}

}  // namespace
}  // namespace trestle::comm
