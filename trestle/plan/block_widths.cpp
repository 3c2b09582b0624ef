#include "trestle/plan/block_widths.h"

#include <algorithm>
#include <string>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {

namespace {

void check(const BlockSizes& sizes, const BlockSettings& settings) {
  for (const auto& [name, size] : {std::pair<const char*, std::int64_t>{"batch", sizes.batch},
                                   {"tokens", sizes.tokens},
                                   {"width", sizes.width},
                                   {"heads", sizes.heads},
                                   {"kv_heads", sizes.kv_heads},
                                   {"head_size", sizes.head_size},
                                   {"mlp", sizes.mlp},
                                   {"tensor", settings.tensor}})
    if (size < 1) throw UsageError(text("a block with ", name, " = ", size, ", which is below 1"));
  if (sizes.heads % sizes.kv_heads != 0 || sizes.heads % settings.tensor != 0 ||
      (sizes.kv_heads % settings.tensor != 0 && settings.tensor % sizes.kv_heads != 0))
    throw UsageError(
        text("a block of ", sizes.heads, " heads, ", sizes.kv_heads,
             " of keys and values, cannot be split over ", settings.tensor, " tensor ranks"),
        {.hint = "Choose a number that divides the heads, and divides the heads of "
                 "keys and values or is a multiple of them."});
}

}  // namespace

BlockWidths widths_of(const BlockSizes& sizes, const BlockSettings& settings) {
  using Numbers = BlockSettings::Numbers;
  check(sizes, settings);
  const std::int64_t t = settings.tensor;
  const auto largest = [t](std::int64_t whole) { return (whole + t - 1) / t; };
  const bool narrow = settings.numbers == Numbers::BFloat16;
  return {.tokens = sizes.batch * sizes.tokens,
          .own_tokens = sizes.batch * (settings.sequence ? largest(sizes.tokens) : sizes.tokens),
          .heads = sizes.heads / t,
          .kv_heads = std::max<std::int64_t>(sizes.kv_heads / t, 1),
          .kv_columns = largest(sizes.kv_heads * sizes.head_size),
          .mlp = largest(sizes.mlp),
          .sum = narrow ? 2 : 4,
          .product = settings.numbers == Numbers::Float32 ? 4 : 2,
          .score = narrow ? 2 : 4};
}

}  // namespace trestle::plan
