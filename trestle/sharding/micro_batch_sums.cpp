#include "trestle/sharding/micro_batch_sums.h"

#include <ATen/core/grad_mode.h>

namespace trestle::sharding {

MicroBatchSums::MicroBatchSums(int pieces, std::size_t groups) : pieces_(pieces), groups_(groups) {}

at::Tensor MicroBatchSums::add(std::size_t group, at::Tensor gradients) {
  const at::NoGradGuard no_grad;
  auto& sums = groups_[group].sums;
  int pieces = 1;
  at::Tensor room;
  while (!sums.empty() && sums.back().first == pieces) {
    sums.back().second.add_(gradients);
    room = std::exchange(gradients, std::move(sums.back().second));
    sums.pop_back();
    pieces *= 2;
  }
  if (pieces == pieces_) return gradients;
  sums.emplace_back(pieces, std::move(gradients));
  return room;
}

const std::vector<bool>& MicroBatchSums::note_used(std::size_t group,
                                                   const std::vector<bool>& used) {
  auto& all = groups_[group].used;
  all.resize(used.size(), false);
  for (std::size_t i = 0; i < used.size(); ++i) all[i] = all[i] || used[i];
  return all;
}

void MicroBatchSums::end_piece() {
  if (!is_last())
    ++done_;
  else
    begin_anew();
}

void MicroBatchSums::begin_anew() {
  done_ = 0;
  for (Group& group : groups_) group = {};
}

}  // namespace trestle::sharding
