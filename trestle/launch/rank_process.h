#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <optional>

#include "trestle/base/stopwatch.h"
#include "trestle/launch/descriptors.h"
#include "trestle/launch/exit_status.h"
#include "trestle/launch/line_splitter.h"
#include "trestle/launch/output.h"
#include "trestle/launch/rank_command.h"
#include "trestle/launch/signal_source.h"

namespace trestle::launch {

// The arguments that all ranks of one start share.
struct StartContext {
  const LaunchOptions& options;
  const std::string& program;  // the executable file
  const SignalSource& signals;
  int restart;
};

// One rank: a process that leads its own process group, and the pipes of its output.
class RankProcess {
 public:
  // Starts the process. Throws FileError for errors of the system.
  RankProcess(const RankCommand& command, const StartContext& context);
  // Kills its group, unless finish() has done so.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return rank_; }
  pid_t process() const { return number_; }
  const Stopwatch& since_start() const { return since_start_; }

  bool ended() const { return exit_status_.has_value(); }
  const ExitStatus& exit_status() const { return *exit_status_; }
  double seconds() const { return seconds_; }  // from start to end
  // Whether the launcher has sent SIGKILL.
  bool killed() const { return killed_; }
  // Polls whether it has ended; returns true once. The process remains a zombie, so that its pid is
  // not reused while its group may still get signals.
  bool poll_exit();
  // Whether a signal has stopped it, such as Ctrl-Z (not a debugger).
  bool is_stopped() const;
  // Polls how long it has been stopped, as far as earlier calls have seen it; zero while it runs.
  std::chrono::duration<double> stopped_for();
  // The errno of a failed execve(), or 0.
  int start_failure() const { return start_failure_; }

  // Sends a signal to its whole group.
  void send(int signal);

  // The pipe of its standard output or error; -1 if the launcher does not read it, or at its end.
  int descriptor(Stream stream) const { return readers_[index(stream)].from.get(); }
  // Passes on available output without waiting. Returns true at the end of the stream.
  bool read_some(Stream stream, Output& output);
  // Closes the pipe; unread output is lost.
  void stop_reading(Stream stream) { readers_[index(stream)].from.reset(); }

  // Called when it has ended: kills the rest of its group, passes on the remaining output, and
  // reaps it.
  void finish(Output& output);
  // Gives up on a process that SIGKILL does not end, such as one that waits for a broken disk.
  void abandon();

 private:
  struct Reader {
    Descriptor from;
    LineSplitter lines;
  };
  static std::size_t index(Stream stream) { return static_cast<std::size_t>(stream); }

  int rank_;
  pid_t process_ = -1;  // -1 once it is reaped or abandoned
  pid_t number_ = -1;
  Stopwatch since_start_;
  Descriptor start_status_;
  std::array<Reader, 2> readers_;
  std::optional<ExitStatus> exit_status_;
  std::optional<Stopwatch> since_stop_;
  double seconds_ = 0;
  int start_failure_ = 0;
  bool killed_ = false;
};

}  // namespace trestle::launch
