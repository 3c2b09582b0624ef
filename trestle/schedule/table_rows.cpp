#include "trestle/schedule/table_rows.h"

#include <algorithm>
#include <cstddef>

namespace trestle::schedule {
namespace {

Schedule empty_table(const GenerateOptions& options) {
  Schedule table;
  table.stages = options.stages;
  table.micro_batches = options.micro_batches;
  table.ranks.resize(static_cast<std::size_t>(options.stages / options.stages_per_rank));
  return table;
}

}  // namespace

Schedule table_in_loop(const GenerateOptions& options) {
  Schedule table = empty_table(options);
  for (int stage = 0; stage < table.stages; ++stage)
    table.rank_of_stage.push_back(stage % table.rank_count());
  return table;
}

Schedule table_in_v(const GenerateOptions& options) {
  Schedule table = empty_table(options);
  for (int stage = 0; stage < table.stages; ++stage)
    table.rank_of_stage.push_back(std::min(stage, table.stages - 1 - stage));
  return table;
}

std::vector<int> stages_of(const Schedule& table, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < table.stages; ++stage)
    if (table.rank_of_stage[static_cast<std::size_t>(stage)] == rank) stages.push_back(stage);
  return stages;
}

RowMaker::RowMaker(const std::vector<int>& stage_of_chunk) {
  for (const int stage : stage_of_chunk) chunks_.push_back({.stage = stage});
}

void RowMaker::forward(int chunk) {
  actions_.push_back(schedule::forward(at(chunk).stage, at(chunk).forwards++));
}

void RowMaker::backward(int chunk) {
  actions_.push_back(schedule::backward(at(chunk).stage, at(chunk).backwards++));
}

void RowMaker::input_grad(int chunk) {
  waiting_.emplace_back(chunk, at(chunk).backwards);
  actions_.push_back(schedule::input_grad(at(chunk).stage, at(chunk).backwards++));
}

void RowMaker::weight_grad(int chunk) {
  const auto oldest = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const auto& one) { return one.first == chunk; });
  actions_.push_back(schedule::weight_grad(at(chunk).stage, oldest->second));
  waiting_.erase(oldest);
}

void RowMaker::oldest_weight_grad() { weight_grad(waiting_.front().first); }

void RowMaker::overlap(int forward_chunk, int backward_chunk) {
  const Action ahead = schedule::forward(at(forward_chunk).stage, at(forward_chunk).forwards++);
  const Action back = schedule::backward(at(backward_chunk).stage, at(backward_chunk).backwards++);
  actions_.push_back({.kind = Kind::OverlapForwardBackward,
                      .stage = ahead.stage,
                      .micro_batch = ahead.micro_batch,
                      .partner_stage = back.stage,
                      .partner_micro_batch = back.micro_batch});
}

}  // namespace trestle::schedule
