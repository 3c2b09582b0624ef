#include "trestle/launch/descriptors.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::launch {

namespace {

constexpr int first_above_stdio = STDERR_FILENO + 1;

}  // namespace

void Descriptor::reset() {
  if (number_ >= 0) close(number_);
  number_ = -1;
}

Descriptor move_above_stdio(int number, const std::string& what) {
  if (number < 0) throw_errno(what);
  if (number >= first_above_stdio) return Descriptor(number);
  const Descriptor low(number);
  const int high = fcntl(number, F_DUPFD_CLOEXEC, first_above_stdio);
  if (high < 0) throw_errno(what);
  return Descriptor(high);
}

Pipe make_pipe(const std::string& what) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno("a pipe " + what);
  Descriptor to(ends[1]);
  Pipe pipe;
  pipe.read = move_above_stdio(ends[0], "a pipe " + what);
  pipe.write = move_above_stdio(to.release(), "a pipe " + what);
  return pipe;
}

Descriptor open_file(const std::string& path, int flags) {
  constexpr mode_t mode = 0666;
  return move_above_stdio(open(path.c_str(), flags | O_CLOEXEC, mode), path);
}

void set_non_blocking(const Descriptor& descriptor) {
  fcntl(descriptor.get(), F_SETFL, fcntl(descriptor.get(), F_GETFL) | O_NONBLOCK);
}

void close_all_but(int kept) {
  const auto close_from_to = [](unsigned first, unsigned last) {
    if (first <= last) syscall(SYS_close_range, first, last, 0U);
  };
  const auto number = static_cast<unsigned>(kept);
  if (number > 0) close_from_to(0, number - 1);
  close_from_to(number + 1, ~0U);
}

void throw_errno(const std::string& what) {
  throw FileError(text(what, ": ", std::generic_category().message(errno)));
}

}  // namespace trestle::launch
