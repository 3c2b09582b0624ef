#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/tokens/files/token_set.h"

namespace trestle::tokens {

// How a text becomes rows of `context` tokens.
enum class RowOrder {
  Windows,    // row i has the tokens from i * context on, whatever documents they are of
  Random,     // a row begins at a random place, as nanoGPT's
  Documents,  // whole documents in shuffled order, one after the other, cut into rows
  Rows,       // row i is document i, cut to the context, and padded at its end
};
// "windows", "random", "documents" or "rows". Throws UsageError for another word.
RowOrder parse_row_order(std::string_view word);

struct TokenRowsOptions {
  RowOrder order = RowOrder::Windows;
  std::int64_t context = 0;
  std::int64_t vocabulary = 0;  // ids that are not below it are errors
  std::int64_t count = 0;       // Random: rows of an epoch. Windows: evenly spaced rows; 0 = all
  std::uint64_t seed = 0;       // Documents: of their order
};

// Rows by number, for several threads at once.
//
//   TokenRows rows(set, {.context = 256, .vocabulary = 50257});
//   std::vector<std::int64_t> ids(256), targets(256);
//   rows.read(7, 0, {.ids = ids, .targets = targets});
class TokenRows {
 public:
  // Throws UsageError for a context below 1, a text that has no row, and Random without a count.
  TokenRows(std::shared_ptr<const TokenSet> set, TokenRowsOptions options);

  std::int64_t count() const { return count_; }
  // Whether read() fills `places`: for Documents and Rows.
  bool has_places() const {
    return options_.order == RowOrder::Documents || options_.order == RowOrder::Rows;
  }
  const TokenRowsOptions& options() const { return options_; }
  const TokenSet& set() const { return *set_; }

  struct Row {
    std::span<std::int64_t> ids;      // the inputs; 0 in padding
    std::span<std::int64_t> targets;  // the next token, or -100 where none counts
    // In the document, from 0; -1 in padding. A document that began in an earlier row counts from 0
    // again, because a row does not see the rows before it.
    std::span<std::int64_t> places;
  };
  // Fills row `number` of `context` tokens. `key` draws the place of a Random row and has no effect
  // otherwise. A document's last token has no target, because the next document is no answer to it;
  // in Windows and Random every token has one. A target that does not count (NAME.counts) is none.
  // Throws UsageError for a number that is not below count(), and for spans of other sizes than
  // `context`; `places` may be empty without has_places().
  void read(std::int64_t number, std::uint64_t key, const Row& row) const;

 private:
  void check_row(std::int64_t number, const Row& row) const;
  void read_window(std::int64_t first, const Row& row) const;
  void read_document(std::int64_t document, std::int64_t offset, const Row& row, std::int64_t at,
                     std::int64_t size) const;
  void read_packed(std::int64_t number, const Row& row) const;

  std::shared_ptr<const TokenSet> set_;
  TokenRowsOptions options_;
  std::int64_t count_ = 0;
  std::vector<std::int64_t> order_;   // Documents: numbers
  std::vector<std::int64_t> begins_;  // Documents: the sum of the sizes before each, and the end
};

}  // namespace trestle::tokens
