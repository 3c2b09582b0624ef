#include "trestle/train/run_network.h"

#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/train/setup.h"

namespace trestle::train {
namespace {

constexpr int ping_rounds = 8;
constexpr std::int64_t few_bytes = 8;
constexpr std::int64_t small_message = 256 << 10, medium_message = 1 << 20, large_message = 4 << 20;
constexpr double least_both_ways = 0.5;  // a link that is not full duplex
constexpr double longest_message = 0.5;  // seconds, of those that follow the first one

// Measures the link between two ranks; both make the same calls.
class LinkMeter {
 public:
  enum class Turn { First, Second };

  LinkMeter(const comm::Group& group, int peer, Turn turn)
      : group_(group.with_check(comm::Check::Off)), peer_(peer), first_(turn == Turn::First) {}

  // The bandwidth is the slope between a small and a larger message: a network may carry the first
  // bytes after a pause faster than the next ones.
  simulate::Link measure() {
    const double latency = ping();
    const double small = fastest_of(2, [&] { return one_message(small_message); });
    const bool is_fast = small * large_message / small_message < longest_message;
    const std::int64_t count = is_fast ? large_message : medium_message;
    const double large = fastest_of(2, [&] { return one_message(count); });
    const double small_both = fastest_of(2, [&] { return messages_both_ways(small_message); });
    const double large_both = fastest_of(2, [&] { return messages_both_ways(count); });
    const double seconds = std::max(large - small, 1e-9);
    const double seconds_both = std::max(large_both - small_both, 1e-9);
    return {.bandwidth = static_cast<double>(count - small_message) / seconds,
            .latency = latency,
            .both_ways = std::clamp(seconds / seconds_both, least_both_ways, 1.0)};
  }

 private:
  void send(const at::Tensor& tensor, int tag = 0) const { group_.send(tensor, peer_, tag).wait(); }
  comm::Work receive(const at::Tensor& tensor, int tag = 0) const {
    return group_.receive(tensor, peer_, tag);
  }
  static at::Tensor bytes(std::int64_t count) { return at::zeros({count}, at::kByte); }

  // Seconds of one message. Each receive is posted before its message can be sent.
  double ping() const {
    const at::Tensor out = bytes(few_bytes), in = bytes(few_bytes);
    double fastest = std::numeric_limits<double>::infinity();
    comm::Work next = receive(in);
    for (int round = 0; round < ping_rounds; ++round) {
      const Stopwatch watch;
      if (first_) send(out);
      next.wait();
      if (round + 1 < ping_rounds) next = receive(in);
      if (!first_) send(out);
      if (round > 0 && first_) fastest = std::min(fastest, watch.seconds() / 2);
    }
    return from_first(fastest);
  }

  // One message in each direction. Returns the seconds of this rank's, with its answer.
  double one_message(std::int64_t count) const {
    const at::Tensor large = bytes(count), small = bytes(few_bytes);
    double seconds = 0;
    for (const bool sends : {first_, !first_}) {
      if (!sends) {
        receive(large).wait();
        send(small);
        continue;
      }
      comm::Work answer = receive(small);
      const Stopwatch watch;
      send(large);
      answer.wait();
      seconds = watch.seconds();
    }
    return seconds;
  }

  // One message in each direction at the same time.
  double messages_both_ways(std::int64_t count) const {
    const at::Tensor out = bytes(count), in = bytes(count);
    constexpr int own_tag = 1;  // the messages of exchange() must not be taken for these
    comm::Work received = receive(in, own_tag);
    (void)exchange(0);  // both have posted their receive
    const Stopwatch watch;
    send(out, own_tag);
    received.wait();
    return watch.seconds();
  }

  // The slower of both ranks.
  double fastest_of(int rounds, const std::function<double()>& seconds) const {
    double fastest = std::numeric_limits<double>::infinity();
    for (int round = 0; round < rounds; ++round) fastest = std::min(fastest, seconds());
    return std::max(fastest, exchange(fastest));
  }

  double exchange(double own) const {
    const at::Tensor out = at::full({1}, own, at::kDouble), in = at::empty({1}, at::kDouble);
    comm::Work received = receive(in);
    send(out);
    received.wait();
    return in.item<double>();
  }
  double from_first(double own) const {
    const double other = exchange(own);
    return first_ ? own : other;
  }

  comm::Group group_;
  int peer_;
  bool first_;
};

// The first rank of each host.
std::vector<int> first_ranks(const RunNetwork& network) {
  std::vector<int> first;
  for (std::size_t rank = 0; rank < network.host_of_rank.size(); ++rank)
    if (network.host_of_rank[rank] == static_cast<int>(first.size()))
      first.push_back(static_cast<int>(rank));
  return first;
}

simulate::Link measure_link(const RunNetwork& network, const RunRanks& ranks) {
  const std::vector<int> first = first_ranks(network);
  simulate::Link own{.bandwidth = std::numeric_limits<double>::max(), .latency = 0};
  const auto take = [&](const simulate::Link& link) {
    own.bandwidth = std::min(own.bandwidth, link.bandwidth);
    own.latency = std::max(own.latency, link.latency);
    own.both_ways = std::min(own.both_ways, link.both_ways);
  };
  for (std::size_t host = 1; host < first.size(); ++host) {
    if (ranks.rank() == first[0])
      take(LinkMeter(ranks.group(), first[host], LinkMeter::Turn::First).measure());
    if (ranks.rank() == first[host])
      take(LinkMeter(ranks.group(), first[0], LinkMeter::Turn::Second).measure());
  }
  const auto all = ranks.gather(std::tuple(own.bandwidth, own.latency, own.both_ways));
  const auto [bandwidth, latency, both_ways] = all.at(static_cast<std::size_t>(first[0]));
  return {.bandwidth = bandwidth, .latency = latency, .both_ways = both_ways};
}

}  // namespace

// Two machines may have the same name, and two containers the same kernel.
std::string this_host() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return text(name.data(), " ", boot);
}

std::string RunNetwork::words() const {
  return text(counted(hosts, "host"), " · ", to_string(link),
              measured ? " (measured)" : " (given)");
}

std::optional<RunNetwork> find_network(const recipe::Recipe::Mesh& mesh, const RunRanks& ranks,
                                       const std::string& host) {
  if (ranks.alone()) return std::nullopt;
  RunNetwork network;
  std::vector<std::string> seen;
  for (const std::string& one : ranks.gather(host)) {
    const auto found = std::find(seen.begin(), seen.end(), one);
    network.host_of_rank.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(one);
  }
  network.hosts = static_cast<int>(seen.size());
  if (network.hosts == 1) return std::nullopt;
  const auto given = link_of(mesh);
  network.measured = !given;
  network.link = given ? *given : measure_link(network, ranks);
  return network;
}

}  // namespace trestle::train
