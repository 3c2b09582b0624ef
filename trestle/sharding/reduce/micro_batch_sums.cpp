#include "trestle/sharding/reduce/micro_batch_sums.h"

#include <ATen/core/grad_mode.h>

namespace trestle::sharding {

MicroBatchSums::MicroBatchSums(int micro_batches, std::size_t groups)
    : micro_batches_(micro_batches), groups_(groups) {}

at::Tensor MicroBatchSums::add(std::size_t group, at::Tensor gradients) {
  const at::NoGradGuard no_grad;
  auto& sums = groups_[group].sums;
  int count = 1;
  at::Tensor memory;
  while (!sums.empty() && sums.back().first == count) {
    sums.back().second.add_(gradients);
    memory = std::exchange(gradients, std::move(sums.back().second));
    sums.pop_back();
    count *= 2;
  }
  if (count == micro_batches_) return gradients;
  sums.emplace_back(count, std::move(gradients));
  return memory;
}

const std::vector<bool>& MicroBatchSums::note_used(std::size_t group,
                                                   const std::vector<bool>& used) {
  auto& all = groups_[group].used;
  all.resize(used.size(), false);
  for (std::size_t i = 0; i < used.size(); ++i) all[i] = all[i] || used[i];
  return all;
}

void MicroBatchSums::end_micro_batch() {
  if (is_last())
    restart();
  else
    ++done_;
}

void MicroBatchSums::restart() {
  done_ = 0;
  for (GroupSums& group : groups_) group = {};
}

}  // namespace trestle::sharding
