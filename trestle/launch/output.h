#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "trestle/launch/exit_status.h"
#include "trestle/launch/launcher.h"

namespace trestle::launch {

enum class Stream { Out, Err };

// The launcher's standard output and error: lines of ranks and its own messages. They are queued,
// and written only when that does not block: a slow or stopped reader must not stop the launcher
// from watching the ranks.
class Output {
 public:
  explicit Output(Lines lines) : lines_(lines) {}

  void started(int rank, int process, int restart);
  void line(int rank, Stream stream, std::string_view line);
  void ended(int rank, const ExitStatus& status, double seconds);
  // Writes the last event; `message` is empty if all ranks succeeded.
  void done(int code, const std::string& message);
  // Writes "trestle: ..." to the standard error.
  void say(const std::string& words);

  // The launcher's stream for lines of this stream of the ranks.
  Stream stream_for(Stream of_rank) const { return lines_ == Lines::Json ? Stream::Out : of_rank; }
  static int descriptor(Stream stream);
  bool waits(Stream stream) const { return !queue(stream).bytes.empty(); }
  bool is_full(Stream stream) const { return queue(stream).bytes.size() > most_waiting; }
  // The reader has closed the stream, or the disk is full: later lines are dropped.
  bool is_lost(Stream stream) const { return queue(stream).lost != 0; }
  // The reason as text; empty if the reader has closed the stream.
  std::string why_lost(Stream stream) const;

  // Writes a chunk. Call it when poll() reports room.
  void write_some(Stream stream);
  // Writes everything, waiting if necessary; returns early if a signal is pending at `signals`.
  void write_all(int signals);

 private:
  static constexpr std::size_t most_waiting = 1 << 18;
  struct Queue {
    std::string bytes = {};
    std::size_t written = 0;  // number of bytes that are already written
    int lost = 0;             // errno
  };
  const Queue& queue(Stream stream) const { return queues_[static_cast<std::size_t>(stream)]; }
  void put(Stream stream, std::string_view bytes);

  Lines lines_;
  std::array<Queue, 2> queues_;
};

}  // namespace trestle::launch
