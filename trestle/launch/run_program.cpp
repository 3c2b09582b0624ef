#include "trestle/launch/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/launch/descriptors.h"

namespace trestle::launch {

namespace {

constexpr double grace_of_program = 3;  // seconds from SIGTERM to SIGKILL

// Between fork() and exec() only a few functions are safe.
[[noreturn]] void become_program(char* const* words, std::array<int, 4> ends, pid_t parent) {
  setpgid(0, 0);  // Ctrl-C is for the parent, which decides
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    dup2(ends[static_cast<std::size_t>(stream)], stream);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(words[0], words);
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = write(ends[3], &reason, sizeof reason);
  _exit(127);
}

class RunningProgram {
 public:
  explicit RunningProgram(std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    Pipe out = make_pipe("for a program's output"), errors = make_pipe("for a program's errors"),
         start = make_pipe("for the start of a program");
    const Descriptor nothing = open_file("/dev/null", O_RDONLY);
    const pid_t parent = getpid();
    process_ = fork();
    if (process_ == 0)
      become_program(pointers.data(),
                     {nothing.get(), out.write.get(), errors.write.get(), start.write.get()},
                     parent);
    if (process_ < 0)
      throw FileError(text("cannot be started: ", std::generic_category().message(errno)),
                      {.file = words.front()});
    setpgid(process_, process_);  // whichever of both processes comes first
    start.write.reset();
    int reason = 0;
    if (read(start.read.get(), &reason, sizeof reason) == sizeof reason)
      throw FileError(text("cannot be started: ", std::generic_category().message(reason)),
                      {.file = words.front()});
    streams_ = {std::move(out.read), std::move(errors.read)};
  }

  ~RunningProgram() {
    if (process_ < 0) return;
    kill(-process_, SIGKILL);
    wait();
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  // Waits up to a fifth of a second for output. Returns false at the end of both streams.
  bool read_some(ProgramEnd* end) {
    std::array<pollfd, 2> waiting = {pollfd{streams_[0].get(), POLLIN, 0},
                                     pollfd{streams_[1].get(), POLLIN, 0}};
    constexpr int milliseconds = 200;
    if (poll(waiting.data(), waiting.size(), milliseconds) < 0 && errno != EINTR)
      throw FileError(text("poll: ", std::generic_category().message(errno)));
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (!streams_[i].open() || waiting[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = read(streams_[i].get(), buffer, sizeof buffer);
      if (count > 0)
        (i == 0 ? end->output : end->errors).append(buffer, static_cast<std::size_t>(count));
      else if (count == 0 || errno != EINTR)
        streams_[i].reset();
    }
    return streams_[0].open() || streams_[1].open();
  }

  void stop() {
    kill(process_, SIGTERM);
    ProgramEnd unread;
    for (const Stopwatch watch; watch.seconds() < grace_of_program && read_some(&unread);) {
    }
  }

  ExitStatus wait() {
    int status = 0;
    while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    if (WIFSIGNALED(status)) return {.signal = WTERMSIG(status)};
    return {.code = WEXITSTATUS(status)};
  }

 private:
  pid_t process_ = -1;
  std::array<Descriptor, 2> streams_;  // its output and its errors
};

}  // namespace

std::optional<ProgramEnd> run_program(std::vector<std::string> words,
                                      const std::function<bool()>& should_stop) {
  RunningProgram program(words);
  ProgramEnd end;
  while (program.read_some(&end)) {
    if (!should_stop || !should_stop()) continue;
    program.stop();
    return std::nullopt;
  }
  end.status = program.wait();
  return end;
}

}  // namespace trestle::launch
