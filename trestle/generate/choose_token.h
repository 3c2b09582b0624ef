#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trestle::generate {

// How the next token is chosen from the scores of all tokens.
struct ChoiceOptions {
  double temperature = 0;         // 0 = the token with the largest score; the first of equal ones
  std::int64_t top_k = 0;         // only the K largest scores; 0 = all
  double top_p = 1;               // only the most probable tokens that together have this share
  double repetition_penalty = 1;  // above 1: lowers the scores of tokens that the text has already
  std::uint64_t seed = 0;
};

// Throws UsageError for a number out of range.
void check_choice(const ChoiceOptions& options);

// A chosen token, and how close the choice was.
struct ChosenToken {
  std::int64_t id = 0;
  // How much the difference of two scores must change before another token is chosen; infinite if
  // no change of scores does. The scores are those after the repetition penalty, before the
  // temperature. It is the smallest of these:
  //
  // - at temperature 0: the largest score minus the second largest;
  // - else: a token is drawn where a random number u lies among the shares of all tokens, one after
  //   the other. For each of the two borders of the token's share, at b: the temperature times
  //   |logit(u) - logit(b)|, logit(p) = log(p / (1 - p)). That is the change of the scores on one
  //   side of b against those on the other side which moves b to u;
  // - with top_k or top_p: the differences to the next larger and the next smaller score, because
  //   tokens are then drawn in the order of their scores;
  // - with top_p: the same for the shares around top_p, at which the drawing is cut off.
  //
  // Scores that are computed in another order, as by another number of ranks, differ by rounding.
  // If each is off by less than half of the gap, the choice is the same.
  double gap = 0;
};

// Chooses a token from scores fp32 [vocabulary] on the CPU. `so_far` is the text: the repetition
// penalty divides positive scores of its tokens and multiplies negative ones (Keskar et al. 2019).
// Then the temperature divides the scores, top_k and top_p remove tokens, in Hugging Face's order,
// and the rest is drawn from. The random number depends on (seed, text number, length of the text)
// alone. Ids from `allowed` on are never chosen: padded rows of the vocabulary. Throws FormatError
// for scores that are not finite, and UsageError for other scores and for an `allowed` below 1.
ChosenToken choose_with_gap(const at::Tensor& scores, const std::vector<std::int64_t>& so_far,
                            std::int64_t text_number, std::int64_t allowed,
                            const ChoiceOptions& options);
// The id alone.
std::int64_t choose_token(const at::Tensor& scores, const std::vector<std::int64_t>& so_far,
                          std::int64_t text_number, std::int64_t allowed,
                          const ChoiceOptions& options);

}  // namespace trestle::generate
