#pragma once

#include <cstdint>

#include "trestle/base/units.h"

namespace trestle {

// The messages of one kind: the number of calls, and the bytes of their whole tensors, which each
// rank has before a sum and after a gather. In a group of n ranks a rank sends (n - 1) / n of the
// bytes to other ranks, and twice that in an all-reduce.
struct MessageCount {
  std::int64_t calls = 0;
  Bytes bytes = 0;

  MessageCount& operator+=(const MessageCount& more) {
    calls += more.calls;
    bytes += more.bytes;
    return *this;
  }
  MessageCount& operator-=(const MessageCount& less) {
    calls -= less.calls;
    bytes -= less.bytes;
    return *this;
  }
  bool operator==(const MessageCount&) const = default;
};

enum class MessageKind : std::uint8_t { AllReduce, AllGather, ReduceScatter, AllToAll };

// The part of a collective's bytes that leaves each of `ranks` ranks.
inline double share_sent(MessageKind kind, int ranks) {
  const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  return kind == MessageKind::AllReduce ? 2 * share : share;
}

// A collective that a layer needs in its forward or backward.
struct LayerMessage {
  MessageKind kind = MessageKind::AllReduce;
  Bytes bytes = 0;     // of the whole tensor
  double beside = 0;   // seconds that its rank computes between its start and its wait
  double seconds = 0;  // that it takes

  double exposed() const { return seconds > beside ? seconds - beside : 0; }
  bool operator==(const LayerMessage&) const = default;
};

// The messages of the ranks of a group, by the kind of the collective.
struct Traffic {
  MessageCount all_reduce = {};
  MessageCount all_gather = {};
  MessageCount reduce_scatter = {};
  MessageCount all_to_all = {};

  MessageCount& of(MessageKind kind) {
    switch (kind) {
      case MessageKind::AllReduce:
        return all_reduce;
      case MessageKind::AllGather:
        return all_gather;
      case MessageKind::ReduceScatter:
        return reduce_scatter;
      case MessageKind::AllToAll:
        break;
    }
    return all_to_all;
  }

  // The bytes that leave each of `ranks` ranks.
  double sent(int ranks) const {
    const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
    return share * static_cast<double>(2 * all_reduce.bytes + all_gather.bytes +
                                       reduce_scatter.bytes + all_to_all.bytes);
  }

  Traffic& operator+=(const Traffic& more) {
    all_reduce += more.all_reduce;
    all_gather += more.all_gather;
    reduce_scatter += more.reduce_scatter;
    all_to_all += more.all_to_all;
    return *this;
  }
  friend Traffic operator+(Traffic first, const Traffic& more) { return first += more; }
  friend Traffic operator-(Traffic first, const Traffic& less) {
    first.all_reduce -= less.all_reduce;
    first.all_gather -= less.all_gather;
    first.reduce_scatter -= less.reduce_scatter;
    first.all_to_all -= less.all_to_all;
    return first;
  }
  bool operator==(const Traffic&) const = default;
};

}  // namespace trestle
