#pragma once

#include <sys/types.h>

#include <array>
#include <optional>

#include "trestle/base/stopwatch.h"
#include "trestle/launch/descriptors.h"
#include "trestle/launch/ending.h"
#include "trestle/launch/line_splitter.h"
#include "trestle/launch/output.h"
#include "trestle/launch/rank_command.h"
#include "trestle/launch/signal_source.h"

namespace trestle::launch {

// What all ranks of a start have in common.
struct StartContext {
  const LaunchOptions& options;
  const std::string& program;  // the file
  const SignalSource& signals;
  int restart;
};

// One rank: a process that leads a group of its own, and what comes from it.
class RankProcess {
 public:
  // Starts it. Throws FileError where the system refuses.
  RankProcess(const RankCommand& command, const StartContext& context);
  // Kills its group, if that has not been done.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return rank_; }
  pid_t process() const { return number_; }
  const Stopwatch& since_start() const { return since_start_; }

  bool ended() const { return ending_.has_value(); }
  const Ending& ending() const { return *ending_; }
  double seconds() const { return seconds_; }  // from start to end
  // Whether SIGKILL came from here.
  bool killed() const { return killed_; }
  // Looks whether it has ended; true if that is news. The process stays as a zombie, so that its number
  // is nobody else's while its group may be sent signals.
  bool look();
  // Whether a signal has stopped it, as Ctrl-Z does (and not a debugger).
  bool is_stopped() const;
  // Why the program could not become that process: errno, or 0.
  int start_failure() const { return start_failure_; }

  // To all of its group.
  void send(int signal);

  // Its standard output and error; not open where they are not read here, and at their end.
  int descriptor(Stream stream) const { return readers_[index(stream)].from.get(); }
  // Hands on what has come; does not wait. True if it was the last.
  bool read_some(Stream stream, Output& output);
  // Closes its pipe, with what is in it, as a reader does who goes.
  void stop_reading(Stream stream) { readers_[index(stream)].from.reset(); }

  // When it has ended: kills what is left of its group, hands on what it had written, and lets go.
  void finish(Output& output);
  // Leaves a process alone that not even SIGKILL ends, as one that waits for a broken disk.
  void abandon();

 private:
  struct Reader {
    Descriptor from;
    LineSplitter lines;
  };
  static std::size_t index(Stream stream) { return static_cast<std::size_t>(stream); }

  int rank_;
  pid_t process_ = -1;  // until it is let go
  pid_t number_ = -1;
  Stopwatch since_start_;
  Descriptor start_status_;
  std::array<Reader, 2> readers_;
  std::optional<Ending> ending_;
  double seconds_ = 0;
  int start_failure_ = 0;
  bool killed_ = false;
};

}  // namespace trestle::launch
