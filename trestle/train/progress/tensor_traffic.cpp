#include "trestle/train/progress/tensor_traffic.h"

#include <algorithm>
#include <vector>

namespace trestle::train {

TensorTraffic tensor_traffic(const schedule::Timeline& timeline, int ranks) {
  std::vector<TensorTraffic> all(static_cast<std::size_t>(std::max(timeline.rank_count, 1)));
  for (const schedule::TensorMessage& message : timeline.tensor_messages) {
    TensorTraffic& rank = all.at(static_cast<std::size_t>(message.rank));
    ++rank.messages;
    rank.bytes_sent += share_sent(message.kind, ranks) * static_cast<double>(message.bytes);
    rank.exposed_seconds += message.exposed();
    rank.hidden_seconds += message.hidden();
  }
  return *std::max_element(
      all.begin(), all.end(),
      [](const TensorTraffic& a, const TensorTraffic& b) { return a.bytes_sent < b.bytes_sent; });
}

}  // namespace trestle::train
