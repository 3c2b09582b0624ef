#include "trestle/launch/notes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>

#include "trestle/base/text.h"

namespace trestle::launch {

namespace {

constexpr const char *restart_mark = "restart ", *end_mark = "end ", *settled_mark = "settled",
                     *deadline_mark = "deadline ";

// One write() of at most PIPE_BUF bytes: notes of several ranks do not mix.
void write_note(const std::string& mark, std::string words) {
  const char* const path = std::getenv(NoteReader::variable);
  if (path == nullptr || *path == '\0') return;
  std::replace(words.begin(), words.end(), '\n', '\v');
  const std::string line = (mark + words).substr(0, PIPE_BUF - 1) + "\n";
  const int number = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (number < 0) return;  // the launcher has ended
  [[maybe_unused]] const ssize_t written = write(number, line.data(), line.size());
  close(number);
}

}  // namespace

NoteReader::NoteReader() : pipe_(make_pipe("for the notes of the ranks")) {
  set_non_blocking(pipe_.read);
}

std::string NoteReader::path() const { return text("/proc/", getpid(), "/fd/", pipe_.write.get()); }

Notes NoteReader::read() {
  std::string words;
  std::array<char, 4096> buffer;
  for (ssize_t count = 0; (count = ::read(pipe_.read.get(), buffer.data(), buffer.size())) > 0;)
    words.append(buffer.data(), static_cast<std::size_t>(count));
  Notes notes;
  for (std::string& line : split(words, '\n')) {
    std::replace(line.begin(), line.end(), '\v', '\n');
    if (line.starts_with(restart_mark))
      notes.restart = std::max(notes.restart.value_or(0),
                               std::atoi(line.c_str() + std::string(restart_mark).size()));
    else if (line.starts_with(end_mark) && !notes.end)
      notes.end = line.substr(std::string(end_mark).size());
    else if (line == settled_mark)
      notes.is_settled = true;
    else if (line.starts_with(deadline_mark))
      notes.deadline =
          std::chrono::milliseconds(std::atoll(line.c_str() + std::string(deadline_mark).size()));
  }
  return notes;
}

void note_restart(int restart) { write_note(restart_mark, std::to_string(restart)); }

void note_end(const std::string& reason) { write_note(end_mark, reason); }

void note_settled() { write_note(settled_mark, ""); }

void note_deadline(std::chrono::milliseconds deadline) {
  write_note(deadline_mark, std::to_string(deadline.count()));
}

}  // namespace trestle::launch
