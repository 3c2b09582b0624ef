#include "trestle/comm/processes/network.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "trestle/base/text.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class Socket {
 public:
  Socket(int family, int type) : number_(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (number_ >= 0) close(number_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int number() const { return number_; }

 private:
  const int number_;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_of(const std::string& host, int port, int type, std::string& error) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) error = gai_strerror(code);
  return {found, &freeaddrinfo};
}

// Returns "" if it connects, else why it does not.
std::string try_address(const addrinfo& address, milliseconds time) {
  const Socket socket(address.ai_family, SOCK_STREAM);
  if (socket.number() < 0) return std::generic_category().message(errno);
  if (connect(socket.number(), address.ai_addr, address.ai_addrlen) == 0) return "";
  if (errno != EINPROGRESS) return std::generic_category().message(errno);
  pollfd waiting = {socket.number(), POLLOUT, 0};
  if (poll(&waiting, 1, static_cast<int>(time.count())) <= 0) return "no answer";
  int code = 0;
  socklen_t length = sizeof code;
  getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &code, &length);
  return code == 0 ? "" : std::generic_category().message(code);
}

}  // namespace

std::optional<std::string> cannot_reach(const std::string& host, int port,
                                        steady_clock::time_point end) {
  for (;;) {
    std::string error;
    const auto addresses = addresses_of(host, port, SOCK_STREAM, error);
    for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
      const auto left = std::chrono::duration_cast<milliseconds>(end - steady_clock::now());
      error = try_address(*address, std::clamp(left, milliseconds(1), milliseconds(2000)));
      if (error.empty()) return {};
    }
    if (steady_clock::now() + milliseconds(20) >= end) return error;
    std::this_thread::sleep_for(milliseconds(20));
  }
}

int listen_at(const std::string& host, int port, std::string& problem) {
  const auto addresses = addresses_of(host, port, SOCK_STREAM, problem);
  const int family = addresses ? addresses->ai_family : AF_INET;
  const int number = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  const auto* address = family == AF_INET6 ? reinterpret_cast<const sockaddr*>(&v6)
                                           : reinterpret_cast<const sockaddr*>(&v4);
  const socklen_t length = family == AF_INET6 ? sizeof v6 : sizeof v4;
  constexpr int waiting = 1024;  // ranks that connect at once
  if (number >= 0 && bind(number, address, length) == 0 && listen(number, waiting) == 0)
    return number;
  problem = errno == EADDRINUSE ? "it is in use" : std::generic_category().message(errno);
  if (number >= 0) close(number);
  return -1;
}

namespace {

std::string as_number(const sockaddr_storage& address, socklen_t length) {
  std::array<char, NI_MAXHOST> name = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, name.data(), name.size(),
                  nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return name.data();
}

using EndOfSocket = int (*)(int, sockaddr*, socklen_t*);

// One end of a route: getsockname() or getpeername().
std::string end_of_route(const std::string& host, int port, EndOfSocket end) {
  std::string error;
  const auto addresses = addresses_of(host, port, SOCK_DGRAM, error);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    const Socket socket(address->ai_family, SOCK_DGRAM);
    if (socket.number() < 0) continue;
    if (connect(socket.number(), address->ai_addr, address->ai_addrlen) != 0) continue;
    sockaddr_storage found = {};
    socklen_t length = sizeof found;
    if (end(socket.number(), reinterpret_cast<sockaddr*>(&found), &length) != 0) continue;
    if (std::string words = as_number(found, length); !words.empty()) return words;
  }
  return "";
}

// Its IPv4 address, or its IPv6 address if it has no other one.
std::string address_of_interface(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
  for (const auto& [family, length] :
       {std::pair(AF_INET, sizeof(sockaddr_in)), std::pair(AF_INET6, sizeof(sockaddr_in6))})
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family || name != one->ifa_name)
        continue;
      sockaddr_storage found = {};
      std::memcpy(&found, one->ifa_addr, length);
      return as_number(found, static_cast<socklen_t>(length));
    }
  return "";
}

}  // namespace

std::string local_address_towards(const std::string& host, int port) {
  return end_of_route(host, port, getsockname);
}

std::string address_of_host(const std::string& host, int port) {
  std::string address = end_of_route(host, port, getpeername);
  return is_loopback(address) ? "" : address;
}

const char* named_interface() {
  const char* const name = std::getenv("GLOO_SOCKET_IFNAME");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

std::string address_in_network(const std::string& host, int port) {
  const char* const name = named_interface();
  std::string address =
      name == nullptr ? local_address_towards(host, port) : address_of_interface(name);
  return is_loopback(address) ? "" : address;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

std::optional<std::string> interface_problem(const std::string& name) {
  if (if_nametoindex(name.c_str()) != 0) return {};
  std::vector<std::string> names;
  if (struct if_nameindex* const all = if_nameindex()) {
    for (const struct if_nameindex* one = all; one->if_index != 0; ++one)
      names.emplace_back(one->if_name);
    if_freenameindex(all);
  }
  return text("this machine has no network interface of that name; it has ", join(names, ", "));
}

}  // namespace trestle::comm
