#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "trestle/launch/rank_environment.h"

namespace trestle::comm {

// Prints to the standard error which ranks this rank waits for in init(): after 5 s, and on a
// terminal every 5 s. One rank of each machine prints.
class WaitNotice {
 public:
  WaitNotice(const launch::RankEnvironment& environment, std::chrono::milliseconds deadline);

  // Call it several times a second. `what` is called when a line is due: "rank 0 at node0:29500".
  void waits(const std::function<std::string()>& what);

 private:
  using Clock = std::chrono::steady_clock;

  const bool prints_, repeats_;
  const std::chrono::milliseconds deadline_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point due_;
};

// "ranks 2, 3 of 4 (node 1)": with the numbers of their machines where the launcher gives them.
std::string describe_missing(const std::vector<int>& ranks,
                             const launch::RankEnvironment& environment);

}  // namespace trestle::comm
