#include "trestle/train/sweep/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace {

constexpr char returned = 'R', threw = 'E';  // the first byte of what comes back

[[noreturn]] void refused(const char* what) {
  throw FileError(
      text("a process for a measurement: ", what, ": ", std::generic_category().message(errno)));
}

void write_all(int to, const std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(to, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // the parent has closed its end
    done += static_cast<std::size_t>(count);
  }
}

// Never returns: files and buffers that the parent has open must not be closed or flushed twice.
[[noreturn]] void be_child(const std::function<std::string()>& work, int to, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it ended before it could take this one along
  setpgid(0, 0);                      // Ctrl-C is for the parent, which decides
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
  if (const int nowhere = open("/dev/null", O_WRONLY); nowhere >= 0) {
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
  }
  std::string message;
  try {
    message = returned + work();
  } catch (const std::exception& error) {
    message = threw + std::string(error.what());
  } catch (...) {
    message = threw + std::string("an object that is not an exception was thrown");
  }
  write_all(to, message);
  _exit(0);
}

struct Child {
  pid_t pid = -1;
  int from = -1;
  ~Child() {
    if (pid > 0) {
      kill(pid, SIGKILL);
      wait();
    }
    if (from >= 0) close(from);
  }
  int wait() {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    pid = -1;
    return status;
  }
};

// Reads until the child closes its end; returns nothing when it is to stop.
std::optional<std::string> read_all(int from, const std::function<bool()>& should_stop) {
  std::string all;
  char buffer[4096];
  while (true) {
    if (should_stop && should_stop()) return std::nullopt;
    pollfd waiting{.fd = from, .events = POLLIN, .revents = 0};
    const int ready = poll(&waiting, 1, 200);
    if (ready < 0 && errno != EINTR) refused("poll");
    if (ready <= 0) continue;
    const ssize_t count = read(from, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refused("read");
    if (count == 0) return all;
    all.append(buffer, static_cast<std::size_t>(count));
  }
}

std::string how_it_ended(int status) {
  if (!WIFSIGNALED(status)) return text("ended with code ", WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  return text("ended by signal ", signal, " (", strsignal(signal), ")",
              signal == SIGKILL ? ": perhaps this machine was out of memory" : "");
}

}  // namespace

std::optional<ChildResult> in_child_process(const std::function<std::string()>& work,
                                            const std::function<bool()>& should_stop) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) refused("pipe");
  Child child;
  child.from = ends[0];
  const pid_t parent = getpid();
  child.pid = fork();
  if (child.pid == 0) {
    close(ends[0]);
    be_child(work, ends[1], parent);
  }
  close(ends[1]);
  if (child.pid < 0) refused("fork");
  const std::optional<std::string> message = read_all(child.from, should_stop);
  if (!message) return std::nullopt;
  const int status = child.wait();
  if (message->empty()) return ChildResult{.output = {}, .error = how_it_ended(status)};
  if (message->front() == threw) return ChildResult{.output = {}, .error = message->substr(1)};
  return ChildResult{.output = message->substr(1), .error = {}};
}

}  // namespace trestle::train
