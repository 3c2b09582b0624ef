#include "trestle/simulate/message_flow.h"

#include <algorithm>
#include <map>
#include <utility>

namespace trestle::simulate {

using schedule::Action;
using schedule::Transfer;
using Way = Transfer::Way;

namespace {

// How many messages a rank fetches beyond the one that it needs next.
constexpr std::size_t prefetched = 1;
// A request waits for the data that leave its host before it.
constexpr double request_bytes = 64;

}  // namespace

MessageFlow::MessageFlow(const schedule::Schedule& schedule, const Costs& costs, EventQueue& events,
                         HostPorts& ports, std::function<void(int rank)> wake)
    : schedule_(schedule),
      costs_(costs),
      events_(events),
      ports_(ports),
      wake_(std::move(wake)),
      messages_(2 * schedule.routes.size() * static_cast<std::size_t>(schedule.micro_batches)),
      receivers_(schedule.ranks.size()) {}

std::size_t MessageFlow::place(const Transfer& transfer) const {
  return 2 * (static_cast<std::size_t>(transfer.route) *
                  static_cast<std::size_t>(schedule_.micro_batches) +
              static_cast<std::size_t>(transfer.micro_batch)) +
         (transfer.way == Way::Gradient ? 1 : 0);
}

Transfer MessageFlow::transfer_at(std::size_t place) const {
  const auto micro_batches = static_cast<std::size_t>(schedule_.micro_batches);
  return {.route = static_cast<int>(place / 2 / micro_batches),
          .micro_batch = static_cast<int>(place / 2 % micro_batches),
          .way = place % 2 == 1 ? Way::Gradient : Way::Activation};
}

void MessageFlow::expect(int rank, const std::vector<std::size_t>& places) {
  auto& order = receivers_[static_cast<std::size_t>(rank)].order;
  for (std::size_t position = 0; position < places.size(); ++position)
    if (!is_whole(path(transfer_at(places[position]))))
      order.push_back({.place = places[position], .position = position});
}

MessageFlow::Path MessageFlow::path(const Transfer& transfer) const {
  const auto& route = schedule_.routes[static_cast<std::size_t>(transfer.route)];
  const bool forwards = transfer.way == Way::Activation;
  const auto from = static_cast<std::size_t>(forwards ? route.from_stage : route.to_stage);
  const auto to = static_cast<std::size_t>(forwards ? route.to_stage : route.from_stage);
  std::map<int, PortLoad> loads;
  for (const auto& host : costs_.network->hosts) {
    if (host[from] == host[to]) continue;
    loads[host[from]].sent += 1;
    loads[host[to]].received += 1;
  }
  Path path;
  for (auto& [host, load] : loads) {
    load.host = host;
    path.loads.push_back(load);
  }
  if (costs_.routes.empty()) return path;
  const RouteCost& cost = costs_.routes[static_cast<std::size_t>(transfer.route)];
  path.bytes = cost.bytes;
  path.seconds = cost.seconds;
  return path;
}

std::vector<PortLoad> MessageFlow::loads(const Path& path, double bytes) {
  std::vector<PortLoad> loads = path.loads;
  for (PortLoad& load : loads) {
    load.sent *= bytes;
    load.received *= bytes;
  }
  return loads;
}

// Returns when the last byte of the message's tensors has arrived.
double MessageFlow::hold(const Message& message, const Path& path) {
  return ports_.hold(loads(path, static_cast<double>(path.bytes)), events_.now(), message.what,
                     message.sender) +
         costs_.network->link.latency;
}

// The same for its first part.
double MessageFlow::hold_first_part(const Message& message, const Path& path) {
  if (is_whole(path) && path.bytes > costs_.network->first_part) return hold(message, path);
  return ports_.hold_shortly(loads(path, static_cast<double>(costs_.network->first_part)),
                             events_.now()) +
         costs_.network->link.latency;
}

// The same for the receiver's request, which travels the other way.
double MessageFlow::hold_request(const Path& path) {
  std::vector<PortLoad> back = loads(path, request_bytes);
  for (PortLoad& load : back) std::swap(load.sent, load.received);
  return ports_.hold_shortly(back, events_.now()) + costs_.network->link.latency;
}

void MessageFlow::send(const Transfer& transfer, const Action& what, int rank) {
  const std::size_t at = place(transfer);
  Message& message = messages_[at];
  message.transfer = transfer;
  message.what = what;
  message.sender = rank;
  const Path path = this->path(transfer);
  if (costs_.transfer_mode != TransferMode::Prefetch) {
    const double arrival = path.loads.empty() ? events_.now() + path.seconds : hold(message, path);
    return events_.at(arrival, [this, at] { arrive(at); });
  }
  const double first = path.loads.empty() ? events_.now() : hold_first_part(message, path);
  if (is_whole(path))
    return events_.at(first + (path.loads.empty() ? path.seconds : 0), [this, at] { arrive(at); });
  const auto& route = schedule_.routes[static_cast<std::size_t>(transfer.route)];
  const int to = transfer.way == Way::Activation ? route.to_stage : route.from_stage;
  const int receiver = schedule_.rank_of_stage[static_cast<std::size_t>(to)];
  events_.at(first, [this, at, receiver] {
    messages_[at].sent = true;
    fetch(receiver);
  });
}

void MessageFlow::fetch(int rank) {
  Receiver& receiver = receivers_[static_cast<std::size_t>(rank)];
  if (receiver.fetching || receiver.fetched == receiver.order.size()) return;
  const auto [at, position] = receiver.order[receiver.fetched];
  if (position > receiver.taken + prefetched || !messages_[at].sent) return;
  receiver.fetching = true;
  fetch_tensors(at, rank);
}

void MessageFlow::fetch_tensors(std::size_t at, int receiver) {
  const auto done = [this, at, receiver] {
    Receiver& one = receivers_[static_cast<std::size_t>(receiver)];
    one.fetching = false;
    ++one.fetched;
    arrive(at);
    fetch(receiver);
  };
  const Path path = this->path(messages_[at].transfer);
  if (path.loads.empty()) return events_.at(events_.now() + path.seconds, done);
  events_.at(hold_request(path),
             [this, at, path, done] { events_.at(hold(messages_[at], path), done); });
}

void MessageFlow::arrive(std::size_t at) {
  messages_[at].arrived = events_.now();
  if (const int rank = std::exchange(messages_[at].waiting, -1); rank >= 0) wake_(rank);
}

bool MessageFlow::has(std::size_t at, int rank) {
  if (messages_[at].arrived != not_yet) return true;
  messages_[at].waiting = rank;
  return false;
}

bool MessageFlow::take(std::size_t at, int rank) {
  if (!has(at, rank)) return false;
  ++receivers_[static_cast<std::size_t>(rank)].taken;
  fetch(rank);
  return true;
}

}  // namespace trestle::simulate
