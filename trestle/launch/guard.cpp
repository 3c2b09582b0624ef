#include "trestle/launch/guard.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "trestle/launch/descriptors.h"

namespace trestle::launch {

namespace {

// The number of ranks that a launcher can start. After restarts only the latest groups are kept.
constexpr std::size_t most_groups = 1024;

// Never returns. Calls only functions that are safe between fork() and exec().
[[noreturn]] void run_guard(int from) {
  setpgid(0, 0);  // Ctrl-C must only reach the launcher
  prctl(PR_SET_NAME, "trestle guard");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // Otherwise a reader of the launcher's output would also wait for this process.
  close_all_but(from);
  std::array<pid_t, most_groups> groups{};
  std::size_t count = 0;
  pid_t group = 0;
  ssize_t got = 0;
  while ((got = read(from, &group, sizeof group)) != 0) {
    if (got == static_cast<ssize_t>(sizeof group)) groups[count++ % most_groups] = group;
    if (got < 0 && errno != EINTR) _exit(1);
  }
  for (const pid_t each : groups)
    if (each > 0) kill(-each, SIGKILL);
  _exit(0);
}

}  // namespace

Guard::Guard() {
  Pipe pipe = make_pipe("for the guard process of the ranks");
  process_ = fork();
  if (process_ == 0) run_guard(pipe.read.get());
  if (process_ < 0) throw_errno("the guard process of the ranks");
  to_ = pipe.write.release();
}

Guard::~Guard() {
  kill(process_, SIGKILL);
  close(to_);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::watch(pid_t group) const {
  [[maybe_unused]] const ssize_t written = write(to_, &group, sizeof group);
}

}  // namespace trestle::launch
