// Forwards packets between two interfaces, each after a delay: a long cable.
//
//     delay_link IF1 IF2 MILLISECONDS
//
// It prints "ready" when it forwards, and runs until it is killed. Segmentation and checksum
// offloads must be off on both interfaces: a packet is sent as it was received. Many kernels lack
// the queueing discipline netem, which does the same.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Packet {
  Clock::time_point leaves;
  std::vector<char> bytes;
};

[[noreturn]] void give_up(const char* what, const char* interface) {
  std::fprintf(stderr, "delay_link: %s %s: %s\n", what, interface, std::strerror(errno));
  std::exit(1);
}

template <class Value>
void set(int number, int level, int option, const Value& value, const char* interface) {
  if (setsockopt(number, level, option, &value, sizeof value) != 0)
    give_up("cannot configure", interface);
}

int open_interface(const char* interface) {
  const int number = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (number < 0) give_up("no packet socket for", interface);
  const auto index = static_cast<int>(if_nametoindex(interface));
  if (index == 0) give_up("there is no interface", interface);
  set(number, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1, interface);
  packet_mreq everything = {};
  everything.mr_ifindex = index;
  everything.mr_type = PACKET_MR_PROMISC;
  set(number, SOL_PACKET, PACKET_ADD_MEMBERSHIP, everything, interface);
  sockaddr_ll address = {};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = index;
  if (bind(number, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    give_up("cannot listen on", interface);
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "delay_link IF1 IF2 MILLISECONDS\n");
    return 2;
  }
  const auto delay = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(std::atof(argv[3])));
  const std::array<int, 2> ends = {open_interface(argv[1]), open_interface(argv[2])};
  std::array<std::deque<Packet>, 2> queues;  // packets that came in at this end
  std::puts("ready");
  std::fflush(stdout);
  constexpr std::size_t largest = 65536;
  std::vector<char> buffer(largest);
  for (;;) {
    Clock::time_point next = Clock::now() + std::chrono::seconds(1);
    for (const auto& queue : queues)
      if (!queue.empty()) next = std::min(next, queue.front().leaves);
    const auto wait = std::max(next - Clock::now(), Clock::duration::zero());
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
    constexpr long second = 1'000'000'000;
    const timespec time = {nanoseconds / second, nanoseconds % second};
    std::array<pollfd, 2> waiting = {{{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}}};
    ppoll(waiting.data(), waiting.size(), &time, nullptr);
    for (std::size_t end = 0; end < 2; ++end) {
      constexpr int at_once = 64;  // packets, so that packets that are due do not wait for long
      for (int packet = 0; packet < at_once; ++packet) {
        const ssize_t size = recv(ends[end], buffer.data(), buffer.size(), 0);
        if (size <= 0) break;
        queues[end].push_back({Clock::now() + delay, {buffer.data(), buffer.data() + size}});
      }
    }
    for (std::size_t end = 0; end < 2; ++end) {
      auto& queue = queues[end];
      while (!queue.empty() && queue.front().leaves <= Clock::now()) {
        // A full queue or an interface that is down loses the packet, as a real link does.
        const std::vector<char>& bytes = queue.front().bytes;
        [[maybe_unused]] const ssize_t sent = send(ends[1 - end], bytes.data(), bytes.size(), 0);
        queue.pop_front();
      }
    }
  }
}
