#include "trestle/simulate/message_flow.h"

#include <algorithm>
#include <cstdint>
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
      messages_(2 * (schedule.routes.size() * static_cast<std::size_t>(schedule.micro_batches) +
                     costs.ties.size())),
      receivers_(schedule.ranks.size()) {}

// Routes have a place for each micro-batch and way, ties behind them one for each way.
std::size_t MessageFlow::place(const Transfer& transfer) const {
  const auto micro_batches = static_cast<std::size_t>(schedule_.micro_batches);
  const auto route = static_cast<std::size_t>(transfer.route), routes = schedule_.routes.size();
  const std::size_t pair =
      route < routes ? route * micro_batches + static_cast<std::size_t>(transfer.micro_batch)
                     : routes * micro_batches + (route - routes);
  return 2 * pair + (transfer.way == Way::Gradient ? 1 : 0);
}

Transfer MessageFlow::transfer_at(std::size_t place) const {
  const auto micro_batches = static_cast<std::size_t>(schedule_.micro_batches);
  const std::size_t of_routes = schedule_.routes.size() * micro_batches;
  const Way way = place % 2 == 1 ? Way::Gradient : Way::Activation;
  if (place / 2 >= of_routes) return tie_transfer(place / 2 - of_routes, way);
  return {.route = static_cast<int>(place / 2 / micro_batches),
          .micro_batch = static_cast<int>(place / 2 % micro_batches),
          .way = way};
}

Transfer MessageFlow::tie_transfer(std::size_t tie, Way way) const {
  return {.route = static_cast<int>(schedule_.routes.size() + tie), .micro_batch = 0, .way = way};
}

std::pair<int, int> MessageFlow::stages_of(const Transfer& transfer) const {
  const auto route = static_cast<std::size_t>(transfer.route), routes = schedule_.routes.size();
  std::pair<int, int> stages;
  if (route < routes) {
    stages = {schedule_.routes[route].from_stage, schedule_.routes[route].to_stage};
  } else {
    const TieCost& tie = costs_.ties.at(route - routes);
    stages = {tie.owner, tie.copy};
  }
  if (transfer.way == Way::Gradient) std::swap(stages.first, stages.second);
  return stages;
}

bool MessageFlow::within_rank(const Transfer& transfer) const {
  const auto [from, to] = stages_of(transfer);
  return schedule_.rank_of_stage[static_cast<std::size_t>(from)] ==
         schedule_.rank_of_stage[static_cast<std::size_t>(to)];
}

void MessageFlow::expect(int rank, const std::vector<std::size_t>& places) {
  auto& order = receivers_[static_cast<std::size_t>(rank)].order;
  for (std::size_t position = 0; position < places.size(); ++position)
    if (!is_whole(path(transfer_at(places[position]))))
      order.push_back({.place = places[position], .position = position});
}

MessageFlow::Path MessageFlow::path(const Transfer& transfer) const {
  const auto [sender, receiver] = stages_of(transfer);
  const auto from = static_cast<std::size_t>(sender), to = static_cast<std::size_t>(receiver);
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
  const auto route = static_cast<std::size_t>(transfer.route), routes = schedule_.routes.size();
  if (route >= routes) {
    path.bytes = costs_.ties.at(route - routes).bytes;
    path.seconds = costs_.ties[route - routes].seconds;
  } else if (!costs_.routes.empty()) {
    path.bytes = costs_.routes[route].bytes;
    path.seconds = costs_.routes[route].seconds;
  }
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
  const int receiver =
      schedule_.rank_of_stage[static_cast<std::size_t>(stages_of(transfer).second)];
  events_.at(first, [this, at, receiver] {
    messages_[at].sent = true;
    fetch(receiver);
  });
}

// Drawn as what a tie's messages do: parameters that travel, gradients that are summed.
void MessageFlow::send_tie(const Transfer& transfer, int rank) {
  if (within_rank(transfer)) return hand_over(transfer);
  send(transfer,
       {.kind =
            transfer.way == Way::Activation ? schedule::Kind::Unshard : schedule::Kind::ReduceGrad,
        .stage = static_cast<std::int16_t>(stages_of(transfer).first),
        .micro_batch = -1},
       rank);
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
