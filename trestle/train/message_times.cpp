#include "trestle/train/message_times.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>

#include "trestle/simulate/collective_traffic.h"

namespace trestle::train {

MessageCost time_messages(const comm::Group& group, at::Device device, Bytes bytes) {
  constexpr Bytes most = Bytes{4} << 20;
  constexpr int rounds = 3;
  const auto fastest = [&](std::int64_t elements) {
    const at::Tensor sent = at::zeros({elements}, at::device(device).dtype(at::kFloat));
    double best = 0;
    for (int round = 0; round < rounds; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      group.all_reduce(sent).wait();
      (void)sent[0].item<float>();  // waits for the device
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      best = round == 0 ? taken.count() : std::min(best, taken.count());
    }
    return best;
  };
  const auto elements =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(bytes, most) / sizeof(float)));
  const double latency = fastest(1);
  const double sent =
      2 * static_cast<double>(elements) * sizeof(float) * simulate::share_in_ring(group.size());
  return {.seconds = latency,
          .seconds_per_byte = std::max(0.0, fastest(elements) - latency) / sent};
}

}  // namespace trestle::train
