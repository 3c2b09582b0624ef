#pragma once

#include <string>

#include "trestle/schedule/timeline.h"

// Draws a timeline as text: one row for each rank, time to the right.
//
//     rank 0  0F0 0F1 0F2 0F3  .   .   .   .   .  0B0---- 0F4 0B1---- ...
//     rank 1   .  1F0 1F1 1F2  .   .   .  1B0---- 1F3 1B1---- ...
//     idle 27.3 % of 4 x 33 slots (37.5 % of the ideal time) · peak activations 4 3 2 1
namespace trestle::view {

struct TextGridOptions {
  // The maximum width of a row; 0 = as wide as the slots need, or 120 where the costs have no
  // common slot. A timeline that does not fit is drawn to scale, and labels that do not fit are
  // shortened to a letter.
  int columns = 0;
  // The width at which rows of whole slots are folded: all ranks' first slots, then all ranks' next
  // slots. 0 = rows are not folded. Timelines without slots are drawn to this scale. Has no effect
  // with `columns`.
  int fold = 0;
};

// The rows and the summary line, each with a newline at the end. Dashes extend an action over its
// slots, and a dot is an idle slot. Actions without duration are not drawn. Throws UsageError for
// more than most_cells cells (labels.h).
std::string to_text_grid(const schedule::Timeline& timeline, const TextGridOptions& options = {});

// The summary line alone, without a newline. It gives idle time as a share of the makespan and of
// the ideal time.
std::string summary(const schedule::Timeline& timeline);

}  // namespace trestle::view
