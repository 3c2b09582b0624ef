#include "trestle/pipeline/execute/rank_progress.h"

#include <algorithm>

#include "trestle/base/text.h"
#include "trestle/pipeline/execute/executor.h"
#include "trestle/pipeline/execute/tie_actions.h"

namespace trestle::pipeline {
namespace {

constexpr std::size_t shown_around = 4;  // actions before and after

int sender_of(const MiniBatchState& state, const schedule::Action& action) {
  const schedule::Transfer transfer = transfer_of(state, action);
  const auto& route = route_of(state.cut, transfer);
  const bool gradient = transfer.way == schedule::Transfer::Way::Gradient;
  return state.table()
      .rank_of_stage[static_cast<std::size_t>(gradient ? route.to_stage : route.from_stage)];
}

}  // namespace

std::string describe_rank_progress(const MiniBatchState& state, int rank,
                                   const std::vector<schedule::Action>& row, std::size_t at) {
  if (at >= row.size())
    return text("rank ", rank, " had finished all ", row.size(), " actions of its row");
  const std::size_t begin = at > shown_around ? at - shown_around : 0;
  const std::size_t end = std::min(row.size(), at + shown_around + 1);
  std::vector<std::string> words;
  if (begin > 0) words.emplace_back("...");
  for (std::size_t i = begin; i < end; ++i) {
    const std::string word = schedule::to_string(row[i]);
    words.push_back(i == at ? "[" + word + "]" : word);
  }
  if (end < row.size()) words.emplace_back("...");
  const std::string waiting = schedule::is_receive(row[at].kind)
                                  ? text(", waiting for rank ", sender_of(state, row[at]))
                                  : "";
  return text("rank ", rank, " was at ", schedule::to_string(row[at]), ", action ", at + 1, " of ",
              row.size(), waiting, ": ", join(words, " "));
}

}  // namespace trestle::pipeline
