#include "trestle/schedule/v_blocks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/table_rows.h"

namespace trestle::schedule {
namespace {

constexpr int period = 6;  // slots: F, I and W of two chunks

// The slots of one micro-batch on a rank, [chunk].
struct RankSlots {
  std::array<std::int64_t, 2> forward = {}, input_grad = {};
};

RankSlots slots_of(const VBlock& block, int rank, int ranks) {
  const std::int64_t before = rank, behind = ranks - 1 - rank, last = ranks - 1;
  const std::int64_t turn1 = block.there * last + 1 + block.gaps[0];
  const std::int64_t turn2 = turn1 + block.back * last + 1 + block.gaps[1];
  const std::int64_t turn3 = turn2 + block.there * last + 1 + block.gaps[2];
  return {.forward = {block.there * before, turn1 + block.back * behind},
          .input_grad = {turn3 + block.back * behind, turn2 + block.there * before}};
}

// The actions that a rank has run, and the choice of the next one.
class BlockRow {
 public:
  BlockRow(const std::vector<int>& stages, const RankSlots& slots, int micro_batches, int most_kept)
      : row_(stages), slots_(slots), micro_batches_(micro_batches), most_kept_(most_kept) {}

  struct Choice {
    Kind kind = Kind::Forward;
    int chunk = 0;
  };
  // `is_ready(kind, chunk, micro_batch)`: whether its input is there.
  template <class Ready>
  std::optional<Choice> choose(const Ready& is_ready) const {
    std::optional<std::pair<std::int64_t, Choice>> first;
    const auto consider = [&](Kind kind, int chunk, int next, std::int64_t slot) {
      slot += std::int64_t{period} * next;
      if ((!first || slot < first->first) && is_ready(kind, chunk, next))
        first = {slot, {kind, chunk}};
    };
    for (const int chunk : {0, 1})
      if (const int next = row_.backwards(chunk); next < row_.forwards(chunk))
        consider(Kind::InputGrad, chunk, next, slots_.input_grad[static_cast<std::size_t>(chunk)]);
    const int chunk = next_forward_chunk();
    if (const int next = row_.forwards(chunk); next < micro_batches_ && kept_ < most_kept_)
      consider(Kind::Forward, chunk, next, slots_.forward[static_cast<std::size_t>(chunk)]);
    if (first) return first->second;
    if (row_.has_waiting()) return Choice{Kind::WeightGrad, 0};
    return std::nullopt;
  }

  void run(const Choice& choice) {
    ++done_;
    if (choice.kind == Kind::Forward) {
      ++kept_;
      row_.forward(choice.chunk);
    } else if (choice.kind == Kind::InputGrad) {
      row_.input_grad(choice.chunk);
    } else {
      --kept_;
      row_.oldest_weight_grad();
    }
  }

  int forwards(int chunk) const { return row_.forwards(chunk); }
  int backwards(int chunk) const { return row_.backwards(chunk); }
  bool is_done() const { return done_ == std::int64_t{period} * micro_batches_; }
  std::vector<Action> take() { return row_.take(); }

 private:
  // Forwards keep the order of their blocks.
  int next_forward_chunk() const {
    if (row_.forwards(0) == micro_batches_) return 1;
    const std::int64_t ahead = std::int64_t{period} * (row_.forwards(0) - row_.forwards(1));
    return slots_.forward[0] + ahead < slots_.forward[1] ? 0 : 1;
  }

  RowMaker row_;
  RankSlots slots_;
  int micro_batches_, most_kept_;
  int kept_ = 0;
  std::int64_t done_ = 0;
};

}  // namespace

Schedule stack_blocks(const GenerateOptions& options, const VBlock& block, int most_kept) {
  Schedule table = table_in_v(options);
  const int ranks = table.rank_count();
  std::vector<BlockRow> rows;
  for (int rank = 0; rank < ranks; ++rank)
    rows.emplace_back(stages_of(table, rank), slots_of(block, rank, ranks), options.micro_batches,
                      most_kept);
  const auto row = [&](int rank) -> BlockRow& { return rows[static_cast<std::size_t>(rank)]; };
  // The neighbour that makes an action's input, on the same chunk or where the V turns.
  const auto is_ready = [&](int rank, Kind kind, int chunk, int micro_batch) {
    const bool forward = kind == Kind::Forward;
    const bool down = forward == (chunk == 0);  // the input comes from the rank before
    const int from = down ? rank - 1 : rank + 1;
    if (from < 0) return forward || row(rank).forwards(1) > micro_batch;
    if (from == ranks)
      return (forward ? row(rank).forwards(0) : row(rank).backwards(1)) > micro_batch;
    return (forward ? row(from).forwards(chunk) : row(from).backwards(chunk)) > micro_batch;
  };
  std::vector<std::optional<BlockRow::Choice>> slot(rows.size());
  const auto is_done = [](const BlockRow& one) { return one.is_done(); };
  while (!std::all_of(rows.begin(), rows.end(), is_done)) {
    for (int rank = 0; rank < ranks; ++rank)
      slot[static_cast<std::size_t>(rank)] = row(rank).choose(
          [&](Kind kind, int chunk, int i) { return is_ready(rank, kind, chunk, i); });
    bool runs = false;
    for (std::size_t rank = 0; rank < rows.size(); ++rank)
      if (slot[rank]) {
        rows[rank].run(*slot[rank]);
        runs = true;
      }
    if (!runs) throw StateError(text("blocks in a V of ", ranks, " ranks wait for each other"));
  }
  for (std::size_t rank = 0; rank < rows.size(); ++rank) table.ranks[rank] = rows[rank].take();
  return table;
}

}  // namespace trestle::schedule
