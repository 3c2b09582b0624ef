#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "trestle/schedule/routes.h"
#include "trestle/simulate/costs.h"
#include "trestle/simulate/event_queue.h"
#include "trestle/simulate/host_ports.h"

namespace trestle::simulate {

// The activations, skips and gradients that cross from rank to rank, and the values and gradients
// of tied parameters, on the links of Costs::network. All replicas send at the same time, and ranks
// of one host share its port.
//
// With TransferMode::Prefetch a message travels as the ranks of a pipeline send it. Its first part
// leaves at once; in a whole message it holds all tensors. Other tensors leave when the receiver's
// request for them has arrived, one latency after the receiver is ready: it fetches one message at
// a time, in the order of their use, and at most two more than the rank has taken. With another
// mode a message leaves as a whole, at once.
class MessageFlow {
 public:
  // Calls wake(rank) when what take() or has() waited for has arrived.
  MessageFlow(const schedule::Schedule& schedule, const Costs& costs, EventQueue& events,
              HostPorts& ports, std::function<void(int rank)> wake);

  std::size_t place(const schedule::Transfer& transfer) const;
  schedule::Transfer transfer_at(std::size_t place) const;
  // The transfer of a tied parameter's value, or of a copy's gradient. Its route's number is behind
  // those of the schedule's routes.
  schedule::Transfer tie_transfer(std::size_t tie, schedule::Transfer::Way way) const;
  // Whether the message stays on one rank.
  bool within_rank(const schedule::Transfer& transfer) const;
  // The messages that a rank takes, in the order of their use. Before the step.
  void expect(int rank, const std::vector<std::size_t>& places);

  // `what` sends this message now.
  void send(const schedule::Transfer& transfer, const schedule::Action& what, int rank);
  // A tied parameter's value, or a copy's gradient, leaves this rank now.
  void send_tie(const schedule::Transfer& transfer, int rank);
  // A value within a rank is there now.
  void hand_over(const schedule::Transfer& transfer) { arrive(place(transfer)); }

  // Whether the message has arrived. Otherwise the rank waits for it.
  bool has(std::size_t place, int rank);
  // The same, and if it has arrived the rank takes it.
  bool take(std::size_t place, int rank);
  // Nothing for a message that has not arrived.
  std::optional<double> arrival(std::size_t place) const {
    const double time = messages_[place].arrived;
    return time == not_yet ? std::nullopt : std::optional(time);
  }

 private:
  static constexpr double not_yet = -1;

  struct Message {
    bool sent = false;            // its first part has arrived
    double arrived = not_yet;     // all of it
    int waiting = -1;             // a rank
    schedule::Transfer transfer;  // set by send()
    schedule::Action what;        // the SEND
    int sender = 0;
  };
  struct Fetch {
    std::size_t place;
    std::size_t position;  // among all messages that the rank takes
  };
  struct Receiver {
    std::vector<Fetch> order;  // the messages that are not whole
    std::size_t fetched = 0, taken = 0;
    bool fetching = false;
  };
  struct Path {
    std::vector<PortLoad> loads;  // for each byte; empty = within the hosts
    Bytes bytes = 0;
    double seconds = 0;  // within a host
  };

  // The sending and the receiving stage.
  std::pair<int, int> stages_of(const schedule::Transfer& transfer) const;
  Path path(const schedule::Transfer& transfer) const;
  static std::vector<PortLoad> loads(const Path& path, double bytes);
  double hold(const Message& message, const Path& path);
  // Whether all tensors travel with the first part.
  bool is_whole(const Path& path) const { return path.bytes <= costs_.network->in_first_part; }
  double hold_first_part(const Message& message, const Path& path);
  double hold_request(const Path& path);
  void arrive(std::size_t place);
  // Begins to fetch the receiver's next message if it can.
  void fetch(int receiver);
  void fetch_tensors(std::size_t place, int receiver);

  const schedule::Schedule& schedule_;
  const Costs& costs_;
  EventQueue& events_;
  HostPorts& ports_;
  std::function<void(int)> wake_;
  std::vector<Message> messages_;    // [place]
  std::vector<Receiver> receivers_;  // [rank]
};

}  // namespace trestle::simulate
