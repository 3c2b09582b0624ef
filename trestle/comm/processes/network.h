#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace trestle::comm {

// Tries to connect to a TCP port until `end`. Returns nothing if it succeeded, else the reason of
// the last attempt: "connection refused", "no host of that name".
std::optional<std::string> cannot_reach(const std::string& host, int port,
                                        std::chrono::steady_clock::time_point end);

// Returns a socket that listens at this port, of the address family of `host`. Returns -1 and sets
// `problem` if that fails.
int listen_at(const std::string& host, int port, std::string& problem);

// This machine's address on the route to `host`. Empty if there is no route.
std::string local_address_towards(const std::string& host, int port);

}  // namespace trestle::comm
