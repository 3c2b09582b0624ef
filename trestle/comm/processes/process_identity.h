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
  // The host's address in the network of the ranks, for messages; empty if it is not known.
  std::string address = {};

  std::string to_text() const;
  static ProcessIdentity from_text(const std::string& text);
};

ProcessIdentity own_process_identity();

// "node1 at 10.77.0.2", or "node1" if the address is not known.
std::string describe_host(const ProcessIdentity& identity);
// "process 4711 on node1 at 10.77.0.2".
std::string describe_process(const ProcessIdentity& identity);

// "rank 1 (process 4711 on node1 at 10.77.0.2) exited without an error message".
std::string describe_end(int rank, const ProcessIdentity& identity);

// Whether a process of this machine has ended; a zombie has.
bool has_ended(const ProcessIdentity& identity);

}  // namespace trestle::comm
