#include "trestle/launch/rank_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "trestle/base/text.h"

namespace trestle::launch {

namespace {

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Cores in the form of sched_setaffinity(); empty = not bound.
std::vector<unsigned long> core_mask(const std::vector<int>& cores) {
  if (cores.empty()) return {};
  constexpr std::size_t bits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(static_cast<std::size_t>(cores.back()) / bits + 1);
  for (const int core : cores)
    mask[static_cast<std::size_t>(core) / bits] |= 1UL << (static_cast<std::size_t>(core) % bits);
  return mask;
}

// Prepared before fork(): between fork() and exec() only a few functions are safe.
struct Prepared {
  const char* program;
  std::vector<char*> words, environment;
  std::vector<unsigned long> cores;
  int in = -1, out = -1, err = -1;  // -1: inherited from the launcher
  int status = -1;
  pid_t parent = -1;
  const SignalSource* signals = nullptr;
};

[[noreturn]] void become_rank(const Prepared& prepared) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != prepared.parent) _exit(1);  // the launcher ended before prctl()
  if (prepared.in >= 0) dup2(prepared.in, STDIN_FILENO);
  if (prepared.out >= 0) dup2(prepared.out, STDOUT_FILENO);
  if (prepared.err >= 0) dup2(prepared.err, STDERR_FILENO);
  if (!prepared.cores.empty())
    sched_setaffinity(0, prepared.cores.size() * sizeof(unsigned long),
                      reinterpret_cast<const cpu_set_t*>(prepared.cores.data()));
  prepared.signals->restore_for_exec();
  execve(prepared.program, prepared.words.data(), prepared.environment.data());
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = write(prepared.status, &reason, sizeof reason);
  _exit(127);
}

Descriptor open_log(const LaunchOptions& options, int rank, int restart) {
  const auto file = options.log_folder / text("rank_", rank, ".log");
  return open_file(file.string(), O_WRONLY | O_CREAT | O_APPEND | (restart == 0 ? O_TRUNC : 0));
}

}  // namespace

RankProcess::RankProcess(const RankCommand& command, const StartContext& context)
    : rank_(command.rank) {
  const LaunchOptions& options = context.options;
  std::vector<std::string> words = {options.program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> environment = environment_with(command.variables);
  Prepared prepared{.program = context.program.c_str(),
                    .words = pointers_to(words),
                    .environment = pointers_to(environment),
                    .cores = core_mask(command.cores),
                    .parent = getpid(),
                    .signals = &context.signals};
  Descriptor nothing, log;
  if (rank_ != 0 || isatty(STDIN_FILENO) == 1) {
    nothing = open_file("/dev/null", O_RDONLY);
    prepared.in = nothing.get();
  }
  const std::string what = text("for rank ", rank_);
  Pipe status = make_pipe(what);
  prepared.status = status.write.get();
  std::array<Descriptor, 2> ends;
  if (!options.log_folder.empty()) {
    log = open_log(options, rank_, context.restart);
    prepared.out = prepared.err = log.get();
  } else if (options.lines != Lines::Plain) {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      Pipe pipe = make_pipe(what);
      set_non_blocking(pipe.read);
      readers_[i].from = std::move(pipe.read);
      ends[i] = std::move(pipe.write);
    }
    prepared.out = ends[0].get();
    prepared.err = ends[1].get();
  }
  process_ = fork();
  if (process_ == 0) become_rank(prepared);
  if (process_ < 0) throw_errno(text("a process ", what));
  number_ = process_;
  setpgid(process_, process_);  // also called by the child: the first call counts
  start_status_ = std::move(status.read);
  set_non_blocking(start_status_);
}

RankProcess::~RankProcess() {
  if (process_ <= 0) return;
  kill(-process_, SIGKILL);
  kill(process_, SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool RankProcess::poll_exit() {
  if (exit_status_ || process_ <= 0) return false;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != process_)
    return false;
  exit_status_ = info.si_code == CLD_EXITED ? ExitStatus{.code = info.si_status}
                                            : ExitStatus{.signal = info.si_status};
  seconds_ = since_start_.seconds();
  int reason = 0;
  if (read(start_status_.get(), &reason, sizeof reason) == static_cast<ssize_t>(sizeof reason))
    start_failure_ = reason;
  return true;
}

bool RankProcess::is_stopped() const {
  if (exit_status_ || process_ <= 0) return false;
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(process_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == process_;
}

std::chrono::duration<double> RankProcess::stopped_for() {
  if (!is_stopped())
    since_stop_.reset();
  else if (!since_stop_)
    since_stop_.emplace();
  return std::chrono::duration<double>(since_stop_ ? since_stop_->seconds() : 0);
}

void RankProcess::send(int signal) {
  if (process_ <= 0) return;  // kill(-1, ...) would signal every process
  if (signal == SIGKILL && !ended()) killed_ = true;
  kill(-process_, signal);
}

bool RankProcess::read_some(Stream stream, Output& output) {
  Reader& reader = readers_[index(stream)];
  std::array<char, 65536> buffer;
  const ssize_t count = read(reader.from.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return false;
  const auto take = [&](std::string_view line) { output.line(rank_, stream, line); };
  if (count > 0) {
    reader.lines.add({buffer.data(), static_cast<std::size_t>(count)}, LineSplitter::Clock::now(),
                     take);
    return false;
  }
  reader.lines.end(take);
  reader.from.reset();
  return true;
}

void RankProcess::abandon() {
  exit_status_ = ExitStatus{.signal = SIGKILL};
  seconds_ = since_start_.seconds();
  process_ = -1;
}

void RankProcess::finish(Output& output) {
  if (process_ > 0) kill(-process_, SIGKILL);
  for (const Stream stream : {Stream::Out, Stream::Err}) {
    if (!readers_[index(stream)].from.open()) continue;
    // A process that left the group may keep the pipe open and continue to write.
    constexpr int most_reads = 64;
    for (int i = 0; i < most_reads && descriptor(stream) >= 0; ++i) read_some(stream, output);
    if (descriptor(stream) < 0) continue;
    readers_[index(stream)].lines.end(
        [&](std::string_view line) { output.line(rank_, stream, line); });
    stop_reading(stream);
  }
  while (process_ > 0 && waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
}

}  // namespace trestle::launch
