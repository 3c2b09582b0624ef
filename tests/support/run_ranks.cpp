#include "tests/support/run_ranks.h"

namespace trestle::testing {

void run_ranks(int ranks, const RankFunction& function, std::chrono::milliseconds deadline) {
  spawn(ranks, function, {.deadline = deadline});
}

}  // namespace trestle::testing
