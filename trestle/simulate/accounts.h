#pragma once

#include <utility>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/schedule/timeline.h"

namespace trestle::simulate {

// What stages hold and for how long, added up over time for each rank and for each device. An
// account is what one rank holds on one device.
class Accounts {
 public:
  // The rank and the device of each stage, from 0.
  Accounts(const std::vector<int>& rank_of_stage, const std::vector<int>& device_of_stage);

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
    // Rises and falls. Sorted, the falls of an instant come before its rises: a rank's own actions
    // follow each other, so that what ends does not meet what begins.
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
