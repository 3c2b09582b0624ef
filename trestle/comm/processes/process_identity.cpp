#include "trestle/comm/processes/process_identity.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>

#include "trestle/base/text.h"

namespace trestle::comm {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct Status {
  char state = '?';
  std::int64_t started = 0;
};

// Reads /proc/PID/stat. The program's name, in brackets, may hold any character.
std::optional<Status> status_of(std::int64_t pid) {
  const std::string line = first_line(text("/proc/", pid, "/stat"));
  const auto end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return {};
  std::istringstream fields(line.substr(end_of_name + 1));
  Status status;
  fields >> status.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> status.started;
  return status;
}

}  // namespace

std::string ProcessIdentity::to_text() const {
  return text(host, "\t", machine, "\t", pid, "\t", started, "\t", nonce, "\t", address);
}

ProcessIdentity ProcessIdentity::from_text(const std::string& text) {
  const auto parts = split(text, '\t');
  if (parts.size() != 6) return {};
  return {parts[0], parts[1], std::stoll(parts[2]), std::stoll(parts[3]), parts[4], parts[5]};
}

ProcessIdentity own_process_identity() {
  std::array<char, 256> host = {}, space = {};
  gethostname(host.data(), host.size() - 1);
  const auto length = readlink("/proc/self/ns/pid", space.data(), space.size() - 1);
  const std::string pid_namespace(space.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  const auto status = status_of(getpid());
  return {host.data(),
          text(host.data(), " ", first_line("/proc/sys/kernel/random/boot_id"), " ", pid_namespace),
          getpid(), status ? status->started : 0,
          text(std::random_device()(), std::random_device()())};
}

std::string describe_host(const ProcessIdentity& identity) {
  return identity.address.empty() ? identity.host : text(identity.host, " at ", identity.address);
}

std::string describe_process(const ProcessIdentity& identity) {
  return text("process ", identity.pid, " on ", describe_host(identity));
}

std::string describe_end(int rank, const ProcessIdentity& identity) {
  return text("rank ", rank, " (", describe_process(identity), ") exited without an error message");
}

bool has_ended(const ProcessIdentity& identity) {
  const auto status = status_of(identity.pid);
  return !status || status->started != identity.started || status->state == 'Z' ||
         status->state == 'X';
}

}  // namespace trestle::comm
