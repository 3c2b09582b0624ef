#include "trestle/cli/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <system_error>

#include "trestle/base/text.h"

namespace trestle::cli {

void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0)  // opened for reading: writing still fails
        [[maybe_unused]]
      const int opened = open("/dev/null", O_RDONLY);
}

bool output_arrives() { return static_cast<bool>(std::cout.flush()); }

std::string why_output_was_lost() {
  pollfd out{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  if (poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP)) != 0) return "";
  if (write(STDOUT_FILENO, "\n", 1) == 1) return "the output could not be written";
  // std::cout does not keep errno: the write() above has failed with it again.
  return text("the output could not be written: ", std::generic_category().message(errno));
}

}  // namespace trestle::cli
