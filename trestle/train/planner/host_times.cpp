#include "trestle/train/planner/host_times.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "trestle/base/stopwatch.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/seeded.h"
#include "trestle/optim/factory.h"
#include "trestle/train/message_times.h"
#include "trestle/train/optimizers/recipe_optimizers.h"

namespace trestle::train {

namespace {

constexpr Bytes measured_bytes = Bytes{4} << 20;
constexpr int optimizer_rounds = 4;  // the first one makes the state

double optimizer_seconds_per_byte(const recipe::Recipe& recipe) {
  at::Tensor parameter = at::zeros({static_cast<std::int64_t>(measured_bytes / sizeof(float))})
                             .set_requires_grad(true);
  parameter.mutable_grad() = at::ones_like(parameter);
  const auto optimizer = optim::make_optimizer({parameter}, optimizer_options(recipe));
  double best = 0;
  for (int round = 0; round < optimizer_rounds; ++round) {
    const Stopwatch watch;
    optimizer->step();
    if (round > 0) best = round == 1 ? watch.seconds() : std::min(best, watch.seconds());
  }
  return best / static_cast<double>(measured_bytes);
}

}  // namespace

HostTimes measure_host_times(const recipe::Recipe& recipe, int ranks) {
  HostTimes times;
  times.optimizer_seconds_per_byte = optimizer_seconds_per_byte(recipe);
  if (ranks < 2) return times;
  const auto measured = spawn(
      ranks, [](World& world) { return time_messages(world.group(), at::kCPU, measured_bytes); });
  for (const MessageCost& one : measured) {
    times.replicas.seconds = std::max(times.replicas.seconds, one.seconds);
    times.replicas.seconds_per_byte =
        std::max(times.replicas.seconds_per_byte, one.seconds_per_byte);
  }
  times.tensor = times.stages = times.replicas;
  return times;
}

}  // namespace trestle::train
