#include "trestle/schedule/interleave.h"

#include <algorithm>
#include <cstddef>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/table_rows.h"

namespace trestle::schedule {
namespace {

bool is_legal(int micro_batches, int ranks) {
  return micro_batches % std::max(1, micro_batches / ranks) == 0;
}

// Every multiple of the number of ranks is legal, so there are legal numbers on both sides.
void check_rounds(const GenerateOptions& options, int ranks) {
  const int given = options.micro_batches;
  if (options.stages_per_rank == 1 || is_legal(given, ranks)) return;
  int below = given, above = given;
  while (!is_legal(below, ranks)) --below;
  while (!is_legal(above, ranks)) ++above;
  throw UsageError(
      text("an interleaved schedule: ", given, " micro-batches on ", ranks, " ranks make ",
           given / ranks, " rounds that differ, ", options.stages_per_rank, " stages on each rank"),
      {.hint = text("Give ", below, " or ", above, " micro-batches.")});
}

class InterleavedRow {
 public:
  InterleavedRow(const Schedule& table, int rank, const Interleaving& how)
      : row_(stages_of(table, rank)),
        how_(how),
        chunks_(table.stages / table.rank_count()),
        all_(chunks_ * table.micro_batches),
        late_(how.late_weight_grads * rank),
        round_(table.micro_batches / std::max(1, table.micro_batches / table.rank_count())) {
    const int behind = table.rank_count() - 1 - rank;
    warm_up_ = std::min(all_, (chunks_ - 1) * round_ + how.warm_up_per_rank * behind);
  }

  std::vector<Action> make() {
    while (forwards_ < warm_up_) forward();
    while (backwards_ < all_) {
      if (forwards_ < all_) forward();
      backward();
    }
    while (row_.has_waiting()) row_.oldest_weight_grad();
    return row_.take();
  }

 private:
  // The chunk of the n-th forward.
  int chunk(int n) const { return n / round_ % chunks_; }

  void forward() { row_.forward(chunk(forwards_++)); }
  void backward() {
    const int of = chunks_ - 1 - chunk(backwards_++);
    if (!how_.splits) return row_.backward(of);
    row_.input_grad(of);
    if (backwards_ > late_) row_.oldest_weight_grad();
  }

  RowMaker row_;
  const Interleaving& how_;
  int chunks_, all_, late_, round_;
  int warm_up_ = 0;
  int forwards_ = 0, backwards_ = 0;
};

}  // namespace

Schedule interleave(const GenerateOptions& options, const Interleaving& how) {
  Schedule table = table_in_loop(options);
  check_rounds(options, table.rank_count());
  for (int rank = 0; rank < table.rank_count(); ++rank)
    table.ranks[static_cast<std::size_t>(rank)] = InterleavedRow(table, rank, how).make();
  return table;
}

}  // namespace trestle::schedule
