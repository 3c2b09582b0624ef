#pragma once

#include <cstdint>

#include "trestle/schedule/timeline.h"

namespace trestle::train {

// The messages of tensor ranks in one batch, on the rank with most of them.
struct TensorTraffic {
  std::int64_t messages = 0;
  double bytes_sent = 0;  // that leave the rank
  // Exposed seconds are part of RunPlan::predicted_seconds; the hidden ones run beside computation.
  // 0 if no message was timed.
  double exposed_seconds = 0;
  double hidden_seconds = 0;
};

// The messages of a simulated or measured batch whose layers `ranks` ranks split.
TensorTraffic tensor_traffic(const schedule::Timeline& timeline, int ranks);

}  // namespace trestle::train
