#include "trestle/sharding/piece_sums.h"

#include <ATen/core/grad_mode.h>

namespace trestle::sharding {

PieceSums::PieceSums(int pieces, std::size_t groups) : pieces_(pieces), groups_(groups) {}

at::Tensor PieceSums::add(std::size_t group, at::Tensor gradients) {
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

const std::vector<bool>& PieceSums::note_used(std::size_t group, const std::vector<bool>& used) {
  auto& all = groups_[group].used;
  all.resize(used.size(), false);
  for (std::size_t i = 0; i < used.size(); ++i) all[i] = all[i] || used[i];
  return all;
}

void PieceSums::end_piece() {
  if (!is_last())
    ++done_;
  else
    begin_anew();
}

void PieceSums::begin_anew() {
  done_ = 0;
  for (Group& group : groups_) group = {};
}

}  // namespace trestle::sharding
