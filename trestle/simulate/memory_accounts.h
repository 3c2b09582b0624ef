#pragma once

#include <utility>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/schedule/timeline.h"

namespace trestle::simulate {

// Sums up over time what stages hold, for each rank and each device. An account is the memory that
// one rank holds on one device.
class MemoryAccounts {
 public:
  // The rank and the device of each stage, from 0.
  MemoryAccounts(const std::vector<int>& rank_of_stage, const std::vector<int>& device_of_stage);

  // `stage` holds `bytes` all the time, or from `begin` to `end`.
  void keep(int stage, Bytes bytes);
  void hold(int stage, Bytes bytes, double begin, double end);

  // Appends memory, peak_bytes and device_peak_bytes; device_of_stage must be filled.
  void sum(schedule::Timeline* timeline);

 private:
  using Change = std::pair<double, Bytes>;  // time, and what is added then

  struct Account {
    int rank = 0;
    int device = 0;
    Bytes always = 0;
    // Changes, with falls before rises after sorting by time: a rank's actions run one after the
    // other, so what ends at an instant does not overlap with what begins then.
    std::vector<Change> changes = {};
  };

  Account& account(int stage);
  static void sum_rank(int rank, const std::vector<const Account*>& accounts,
                       schedule::Timeline* timeline);
  static Bytes peak(const std::vector<const Account*>& accounts);

  std::vector<Account> accounts_;
  std::vector<int> account_of_stage_;
};

}  // namespace trestle::simulate
