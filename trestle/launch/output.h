#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "trestle/launch/ending.h"
#include "trestle/launch/launcher.h"

namespace trestle::launch {

enum class Stream { Out, Err };

// What the launcher writes to its standard output and error: ranks' lines and words of its own. They
// are queued, and written only where that does not block, so that a reader who is slow or stopped
// keeps nobody from watching the ranks.
class Output {
 public:
  explicit Output(Lines lines) : lines_(lines) {}

  void started(int rank, int process, int restart);
  void line(int rank, Stream stream, std::string_view line);
  void ended(int rank, const Ending& ending, double seconds);
  // The end of it all; `message` is empty where all is well.
  void done(int code, const std::string& message);
  // "trestle: ..." on the standard error.
  void say(const std::string& words);

  // Where lines of this stream of the ranks go to.
  Stream stream_for(Stream of_rank) const { return lines_ == Lines::Json ? Stream::Out : of_rank; }
  static int descriptor(Stream stream);
  bool waits(Stream stream) const { return !queue(stream).bytes.empty(); }
  bool is_full(Stream stream) const { return queue(stream).bytes.size() > most_waiting; }
  // The reader has gone, or the disk is full: what comes now is dropped.
  bool is_lost(Stream stream) const { return queue(stream).lost != 0; }
  // Why, where it was not a reader who went: for a message.
  std::string why_lost(Stream stream) const;

  // Writes a piece. To be called where poll() says that there is room.
  void write_some(Stream stream);
  // Writes all there is, if need be by waiting; ends early where a signal waits at `signals`.
  void write_all(int signals);

 private:
  static constexpr std::size_t most_waiting = 1 << 18;
  struct Queue {
    std::string bytes = {};
    std::size_t written = 0;  // of them
    int lost = 0;             // errno
  };
  const Queue& queue(Stream stream) const { return queues_[static_cast<std::size_t>(stream)]; }
  void put(Stream stream, std::string_view bytes);

  Lines lines_;
  std::array<Queue, 2> queues_;
};

}  // namespace trestle::launch
