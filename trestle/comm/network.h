#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace trestle::comm {

// Why a TCP connection to this port is not to be had: "connection refused", "no host of that name".
// Tries again until the time is up; nothing once one was there.
std::optional<std::string> cannot_reach(const std::string& host, int port,
                                        std::chrono::steady_clock::time_point end);

// A socket that listens at this port of this machine, for whom the name `host` leads here; -1, and
// why, where there is none to be had.
int listen_at(const std::string& host, int port, std::string& problem);

// This machine's address on the way to `host`: the one that others on that way can reach. Empty if
// there is no way.
std::string local_address_towards(const std::string& host, int port);

}  // namespace trestle::comm
