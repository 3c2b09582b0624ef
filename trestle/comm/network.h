#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace trestle::comm {

// Why a TCP connection to this port is not to be had: "connection refused", "no host of that name".
// Tries again until the time is up; nothing once one was there.
std::optional<std::string> cannot_reach(const std::string& host, int port,
                                        std::chrono::steady_clock::time_point end);

// This machine's address on the way to `host`: the one that others on that way can reach. Empty if
// there is no way.
std::string local_address_towards(const std::string& host, int port);

}  // namespace trestle::comm
