#include "trestle/comm/processes/network.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

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

std::string local_address_towards(const std::string& host, int port) {
  std::string error;
  const auto addresses = addresses_of(host, port, SOCK_DGRAM, error);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    const Socket socket(address->ai_family, SOCK_DGRAM);
    if (socket.number() < 0) continue;
    if (connect(socket.number(), address->ai_addr, address->ai_addrlen) != 0) continue;
    sockaddr_storage own = {};
    socklen_t length = sizeof own;
    if (getsockname(socket.number(), reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
    std::array<char, NI_MAXHOST> name = {};
    if (getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name.data(), name.size(), nullptr, 0,
                    NI_NUMERICHOST) == 0)
      return name.data();
  }
  return "";
}

}  // namespace trestle::comm
