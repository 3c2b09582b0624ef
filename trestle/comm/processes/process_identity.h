#pragma once

#include <cstdint>
#include <string>

namespace trestle::comm {

// Identifies the process of a rank, so that a rank on the same machine can detect that it has
// ended.
struct ProcessIdentity {
  std::string host;     // host name
  std::string machine;  // equal for processes of one boot of one machine, in one PID namespace
  std::int64_t pid = 0;
  std::int64_t started = 0;  // start time in kernel ticks: tells a reused pid from the old process
  std::string nonce = {};    // differs between any two calls of own_process_identity()

  std::string to_text() const;
  static ProcessIdentity from_text(const std::string& text);
};

ProcessIdentity own_process_identity();

// "rank 1 (process 4711 on node1) exited without an error message".
std::string describe_end(int rank, const ProcessIdentity& identity);

// Whether a process of this machine has ended; a zombie has.
bool has_ended(const ProcessIdentity& identity);

}  // namespace trestle::comm
