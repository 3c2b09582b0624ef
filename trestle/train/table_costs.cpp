#include "trestle/train/table_costs.h"

#include <algorithm>

#include "trestle/base/traffic.h"

namespace trestle::train {

MessageCost cost_in_tables(const std::vector<plan::MessageTable>& tables, plan::Exchange kind,
                           int ranks, double bytes, const MessageCost& otherwise) {
  if (tables.empty() || ranks < 2) return otherwise;
  const double size = std::max(bytes, 1.0);
  const auto seconds = plan::message_seconds(
      tables, {.kind = kind, .over = tables.front().over, .ranks = ranks, .bytes = size});
  if (!seconds) return otherwise;
  double share = 1;  // of the bytes that a rank sends
  if (kind != plan::Exchange::Send) {
    share = share_sent(MessageKind::AllGather, ranks);
    if (kind == plan::Exchange::AllReduce) share *= 2;
  }
  return {.seconds = 0, .seconds_per_byte = *seconds / (share * size)};
}

plan::Exchange exchange_of(MessageKind kind) {
  switch (kind) {
    case MessageKind::AllReduce:
      return plan::Exchange::AllReduce;
    case MessageKind::ReduceScatter:
      return plan::Exchange::ReduceScatter;
    case MessageKind::AllGather:
    case MessageKind::AllToAll:
      break;
  }
  return plan::Exchange::AllGather;
}

}  // namespace trestle::train
