#include <cstdio>

#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/simulate.h"

// How idle are four devices under GPipe with sixteen micro-batches? 3/19 of the makespan.
int main() {
  namespace schedule = trestle::schedule;
  const auto table = schedule::generate("gpipe", {.stages = 4, .micro_batches = 16});
  const auto timeline =
      trestle::simulate::simulate(schedule::lower(table, {}), trestle::simulate::unit_costs(4));
  const double idle = schedule::idle_share_of_makespan(timeline);
  std::printf("idle %.4f of the makespan\n", idle);
  return idle > 0.1578 && idle < 0.1580 ? 0 : 1;
}
