#include "trestle/launch/messenger.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <exception>

#include "trestle/launch/descriptors.h"
#include "trestle/launch/rank_command.h"

namespace trestle::launch {

namespace {

// A reader of the launcher's output, and the guard, must not wait for this process.
void close_descriptors() {
  const int nothing = open("/dev/null", O_RDWR);
  close_all_but(nothing);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, stream);
}

}  // namespace

void Messenger::tell(NewsForMachines news) {
  if (options_.nodes == 1 || !options_.tell_machines) return;
  const auto rendezvous = rendezvous_of(options_);
  news.address = rendezvous.address;
  news.port = rendezvous.port;
  news.may_meet_again = options_.max_restarts > 0;
  news.ranks = options_.ranks;
  news.world_size = options_.ranks * options_.nodes;
  const pid_t child = fork();
  if (child > 0) children_.push_back(child);
  if (child != 0) return;
  setpgid(0, 0);  // a second Ctrl-C ends the ranks, not this process
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close_descriptors();
  try {
    options_.tell_machines(news);
  } catch (const std::exception&) {  // no store answers: then no rank waits there
  }
  _exit(0);
}

Messenger::~Messenger() {
  for (const pid_t child : children_)
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
}

std::string host_name() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace trestle::launch
