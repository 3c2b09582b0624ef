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

// Why a network interface cannot be used: "this machine has no interface of that name; it has eth0,
// lo". Nothing if it can.
std::optional<std::string> interface_problem(const std::string& name);

// The address that `host` resolves to here, and that this machine has a route to. Empty if it has
// none, and for an address of this machine alone (127.0.0.1).
std::string address_of_host(const std::string& host, int port);

// This machine's address on the route to `host`. Empty if there is no route. It may be an address
// that only this machine can reach: is_loopback().
std::string local_address_towards(const std::string& host, int port);

// The value of GLOO_SOCKET_IFNAME, which names the network between the ranks; null without it.
const char* named_interface();

// This machine's address in the network between the ranks, whose store is at `host`: that of the
// named interface, else that on the route to `host`. Empty if it is not known.
std::string address_in_network(const std::string& host, int port);

// Whether only processes of one machine can reach this address.
bool is_loopback(const std::string& address);

}  // namespace trestle::comm
