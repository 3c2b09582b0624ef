#include "trestle/simulate/memory_accounts.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>

namespace trestle::simulate {
namespace {

using schedule::Timeline;

template <class T>
T largest(const std::vector<T>& items, T least) {
  for (const T& item : items) least = std::max(least, item);
  return least;
}

}  // namespace

MemoryAccounts::MemoryAccounts(const std::vector<int>& rank_of_stage,
                               const std::vector<int>& device_of_stage) {
  std::map<std::pair<int, int>, int> numbers;
  for (std::size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    const std::pair<int, int> place{rank_of_stage[stage], device_of_stage[stage]};
    const auto [found, made] = numbers.emplace(place, static_cast<int>(accounts_.size()));
    if (made) accounts_.push_back({.rank = place.first, .device = place.second});
    account_of_stage_.push_back(found->second);
  }
}

void MemoryAccounts::keep(int stage, Bytes bytes) { account(stage).always += bytes; }

void MemoryAccounts::hold(int stage, Bytes bytes, double begin, double end) {
  if (bytes == 0 || end <= begin) return;
  auto& changes = account(stage).changes;
  // A hold often begins when the one before it ends. Both then are one change.
  if (!changes.empty() && changes.back().first == begin)
    changes.back().second += bytes;
  else
    changes.emplace_back(begin, bytes);
  changes.emplace_back(end, -bytes);
}

MemoryAccounts::Account& MemoryAccounts::account(int stage) {
  return accounts_[static_cast<std::size_t>(account_of_stage_[static_cast<std::size_t>(stage)])];
}

void MemoryAccounts::sum(Timeline* timeline) {
  std::vector<std::vector<const Account*>> of_rank(static_cast<std::size_t>(timeline->rank_count));
  std::vector<std::vector<const Account*>> of_device(
      static_cast<std::size_t>(largest(timeline->device_of_stage, -1) + 1));
  for (Account& account : accounts_) {
    // The changes consist of long parts in order. A sort that merges is faster on them.
    std::stable_sort(account.changes.begin(), account.changes.end());
    of_rank[static_cast<std::size_t>(account.rank)].push_back(&account);
    of_device[static_cast<std::size_t>(account.device)].push_back(&account);
  }
  std::size_t most_samples = of_rank.size();
  for (const Account& account : accounts_) most_samples += account.changes.size();
  timeline->memory.reserve(most_samples);
  for (int rank = 0; rank < timeline->rank_count; ++rank)
    sum_rank(rank, of_rank[static_cast<std::size_t>(rank)], timeline);
  for (const auto& accounts : of_device) timeline->device_peak_bytes.push_back(peak(accounts));
}

void MemoryAccounts::sum_rank(int rank, const std::vector<const Account*>& accounts,
                              Timeline* timeline) {
  Bytes now = 0;
  std::vector<Change> joined;
  for (const Account* account : accounts) {
    now += account->always;
    if (accounts.size() > 1)
      joined.insert(joined.end(), account->changes.begin(), account->changes.end());
  }
  std::sort(joined.begin(), joined.end());
  const std::vector<Change>& changes = accounts.size() == 1 ? accounts[0]->changes : joined;
  Bytes most = now;
  auto& memory = timeline->memory;
  if (changes.empty() || changes.front().first > 0) memory.push_back({rank, 0, now});
  for (std::size_t i = 0; i < changes.size(); ++i) {
    now += changes[i].second;
    most = std::max(most, now);
    if (i + 1 < changes.size() && changes[i + 1].first == changes[i].first) continue;
    memory.push_back({rank, changes[i].first, now});
  }
  timeline->peak_bytes.push_back(most);
}

// For one account as in sum_rank(). For several accounts, all rises at an instant are added before
// the falls of that instant are subtracted.
Bytes MemoryAccounts::peak(const std::vector<const Account*>& accounts) {
  Bytes now = 0;
  for (const Account* account : accounts) now += account->always;
  Bytes most = now;
  if (accounts.size() == 1) {
    for (const auto& [time, bytes] : accounts[0]->changes) most = std::max(most, now += bytes);
    return most;
  }
  struct Step {
    double time = 0;
    bool falls = false;
    Bytes bytes = 0;
  };
  std::vector<Step> steps;
  for (const Account* account : accounts) {
    const auto& changes = account->changes;
    for (std::size_t i = 0; i < changes.size();) {
      const double time = changes[i].first;
      Bytes net = 0;
      for (; i < changes.size() && changes[i].first == time; ++i) net += changes[i].second;
      if (net != 0) steps.push_back({time, net < 0, net});
    }
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return std::tie(a.time, a.falls) < std::tie(b.time, b.falls);
  });
  for (const Step& step : steps) most = std::max(most, now += step.bytes);
  return most;
}

}  // namespace trestle::simulate
