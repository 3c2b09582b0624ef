#include "trestle/tokens/files/token_rows.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"

namespace trestle::tokens {

namespace {

constexpr std::int64_t no_target = -100;  // nn::ignored_target

struct NamedRowOrder {
  std::string_view name;
  RowOrder order;
};
constexpr std::array row_orders = {
    NamedRowOrder{"windows", RowOrder::Windows}, NamedRowOrder{"random", RowOrder::Random},
    NamedRowOrder{"documents", RowOrder::Documents}, NamedRowOrder{"rows", RowOrder::Rows}};

}  // namespace

RowOrder parse_row_order(std::string_view word) { return choose("order", word, row_orders).order; }

TokenRows::TokenRows(std::shared_ptr<const TokenSet> set, TokenRowsOptions options)
    : set_(std::move(set)), options_(options) {
  const std::int64_t context = options_.context, tokens = set_->count();
  if (context < 1) throw UsageError(text("a row of ", context, " tokens"));
  if (tokens == 0) throw UsageError("the text has no tokens");
  const bool windows = options_.order == RowOrder::Windows || options_.order == RowOrder::Random;
  if (windows && tokens < context + 1)
    throw UsageError(text("the text has ", tokens, " tokens, and a row of ", context,
                          " with the token after it needs ", context + 1),
                     {.hint = "Use a longer text, or a smaller 'context' in [transformer]."});
  switch (options_.order) {
    case RowOrder::Windows: {
      const std::int64_t all = (tokens - 1) / context;
      count_ = options_.count > 0 ? std::min(options_.count, all) : all;
      break;
    }
    case RowOrder::Random:
      if (options_.count < 1)
        throw UsageError("rows at random places need their number in an epoch",
                         {.hint = "Set 'count' in [data]."});
      count_ = options_.count;
      break;
    case RowOrder::Documents: {
      order_.resize(static_cast<std::size_t>(set_->documents()));
      std::iota(order_.begin(), order_.end(), 0);
      Random random(keyed_seed(options_.seed, -1, -1, 0));
      shuffle(order_, random);
      begins_ = {0};
      for (const std::int64_t document : order_)
        begins_.push_back(begins_.back() + set_->document_size(document));
      count_ = (tokens + context - 1) / context;
      break;
    }
    case RowOrder::Rows:
      count_ = set_->documents();
      break;
  }
}

void TokenRows::check_row(std::int64_t number, const Row& row) const {
  const auto context = static_cast<std::size_t>(options_.context);
  const std::size_t places = has_places() || !row.places.empty() ? context : 0;
  if (row.ids.size() != context || row.targets.size() != context || row.places.size() != places)
    throw UsageError(text("a row of ", context, " tokens needs spans of that size for ids, targets",
                          has_places() ? " and places" : "", "; got ", row.ids.size(), ", ",
                          row.targets.size(), " and ", row.places.size()));
  if (number < 0 || number >= count_)
    throw UsageError(text("row ", number, " is outside of the text's rows 0 to ", count_ - 1));
}

void TokenRows::read(std::int64_t number, std::uint64_t key, const Row& row) const {
  const std::int64_t context = options_.context;
  check_row(number, row);
  if (options_.order == RowOrder::Windows) {
    const std::int64_t all = (set_->count() - 1) / context;
    const bool spaced = options_.count > 0 && options_.count < all;
    return read_window((spaced ? number * all / count_ : number) * context, row);
  }
  if (options_.order == RowOrder::Random) {
    Random random(key);
    const auto places = static_cast<std::uint64_t>(set_->count() - context);
    return read_window(static_cast<std::int64_t>(random.below(places)), row);
  }
  std::fill(row.ids.begin(), row.ids.end(), 0);
  std::fill(row.targets.begin(), row.targets.end(), no_target);
  std::fill(row.places.begin(), row.places.end(), -1);
  if (options_.order == RowOrder::Documents) return read_packed(number, row);
  read_document(number, 0, row, 0, std::min(context, set_->document_size(number)));
}

void TokenRows::read_window(std::int64_t first, const Row& row) const {
  set_->read(first, row.ids, options_.vocabulary);
  std::copy(row.ids.begin() + 1, row.ids.end(), row.targets.begin());
  set_->read(first + options_.context, row.targets.last(1), options_.vocabulary);
  set_->mask(first + 1, row.targets);
  std::iota(row.places.begin(), row.places.end(), 0);  // a window is one text
}

// The tokens from `offset` of a document, to the row's columns from `at`.
void TokenRows::read_document(std::int64_t document, std::int64_t offset, const Row& row,
                              std::int64_t at, std::int64_t size) const {
  const auto to = static_cast<std::size_t>(at), many = static_cast<std::size_t>(size);
  const std::int64_t first = set_->document_begin(document) + offset;
  set_->read(first, row.ids.subspan(to, many), options_.vocabulary);
  std::iota(row.places.begin() + at, row.places.begin() + at + size, 0);
  std::copy(row.ids.begin() + at + 1, row.ids.begin() + at + size, row.targets.begin() + at);
  const bool has_next = offset + size < set_->document_size(document);
  if (has_next)
    set_->read(first + size, row.targets.subspan(to + many - 1, 1), options_.vocabulary);
  set_->mask(first + 1, row.targets.subspan(to, has_next ? many : many - 1));
}

void TokenRows::read_packed(std::int64_t number, const Row& row) const {
  const std::int64_t begin = number * options_.context;
  const std::int64_t end = std::min(begin + options_.context, begins_.back());
  auto place = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) -
                                        begins_.begin() - 1);
  for (std::int64_t done = begin; done < end; ++place) {
    const std::int64_t size = std::min(begins_[place + 1], end) - done;
    read_document(order_[place], done - begins_[place], row, done - begin, size);
    done += size;
  }
}

}  // namespace trestle::tokens
