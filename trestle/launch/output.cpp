#include "trestle/launch/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "trestle/base/text.h"

namespace trestle::launch {

namespace {

using nlohmann::ordered_json;

// Replaces bytes that are not valid UTF-8: a rank may write any bytes.
std::string one_line(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

const char* name_of(Stream stream) { return stream == Stream::Out ? "stdout" : "stderr"; }

}  // namespace

int Output::descriptor(Stream stream) {
  return stream == Stream::Out ? STDOUT_FILENO : STDERR_FILENO;
}

void Output::put(Stream stream, std::string_view bytes) {
  Queue& queue = queues_[static_cast<std::size_t>(stream)];
  if (queue.lost == 0) queue.bytes += bytes;
}

void Output::started(int rank, int process, int restart) {
  if (lines_ == Lines::Json)
    put(Stream::Out,
        one_line({{"event", "start"}, {"rank", rank}, {"process", process}, {"restart", restart}}));
}

void Output::line(int rank, Stream stream, std::string_view line) {
  if (lines_ == Lines::Json)
    put(Stream::Out,
        one_line({{"event", "line"}, {"rank", rank}, {"stream", name_of(stream)}, {"text", line}}));
  else
    put(stream, ("[" + std::to_string(rank) + "] ").append(line).append("\n"));
}

void Output::ended(int rank, const ExitStatus& status, double seconds) {
  if (lines_ != Lines::Json) return;
  ordered_json object = {{"event", "end"}, {"rank", rank}};
  if (status.signal == 0)
    object["code"] = status.code;
  else
    object["signal"] = status.signal;
  object["seconds"] = seconds;
  put(Stream::Out, one_line(object));
}

void Output::done(int code, const std::string& message) {
  if (lines_ == Lines::Json)
    put(Stream::Out, one_line({{"event", "done"}, {"code", code}, {"message", message}}));
}

void Output::say(const std::string& words) { put(Stream::Err, "trestle: " + words + "\n"); }

std::string Output::why_lost(Stream stream) const {
  const int reason = queue(stream).lost;
  return reason == 0 || reason == EPIPE ? "" : std::generic_category().message(reason);
}

void Output::write_some(Stream stream) {
  // After poll() a pipe accepts at least this many bytes without blocking (PIPE_BUF).
  constexpr std::size_t chunk = 4096;
  Queue& queue = queues_[static_cast<std::size_t>(stream)];
  const std::size_t left = queue.bytes.size() - queue.written;
  const ssize_t count =
      write(descriptor(stream), queue.bytes.data() + queue.written, left < chunk ? left : chunk);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count < 0) queue.lost = errno;
  queue.written += static_cast<std::size_t>(count < 0 ? 0 : count);
  if (queue.lost != 0 || queue.written == queue.bytes.size()) queue = Queue{.lost = queue.lost};
  // Erases written bytes rarely: erasing them after each write would take quadratic time.
  if (queue.written > most_waiting) {
    queue.bytes.erase(0, queue.written);
    queue.written = 0;
  }
}

void Output::write_all(int signals) {
  while (waits(Stream::Out) || waits(Stream::Err)) {
    std::array<pollfd, 3> waiting{};
    waiting[0] = {.fd = waits(Stream::Out) ? STDOUT_FILENO : -1, .events = POLLOUT, .revents = 0};
    waiting[1] = {.fd = waits(Stream::Err) ? STDERR_FILENO : -1, .events = POLLOUT, .revents = 0};
    waiting[2] = {.fd = signals, .events = POLLIN, .revents = 0};
    if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
    if (waiting[2].revents != 0) return;
    if (waiting[0].revents != 0) write_some(Stream::Out);
    if (waiting[1].revents != 0) write_some(Stream::Err);
  }
}

}  // namespace trestle::launch
