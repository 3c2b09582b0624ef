#pragma once

#include <string>

#include "trestle/schedule/timeline.h"

// A timeline as text: one row for each rank, time to the right.
//
//     rank 0  0F0 0F1 0F2 0F3  .   .   .   .   .  0B0---- 0F4 0B1---- ...
//     rank 1   .  1F0 1F1 1F2  .   .   .  1B0---- 1F3 1B1---- ...
//     idle 27.3 % of 4 x 33 slots (37.5 % of the ideal time) · peak activations 4 3 2 1
namespace trestle::view {

struct TextGridOptions {
  // The most columns a row may have (a terminal's width); 0 = as many as the slots need, and 120
  // where the costs share no slot. Rows that would be longer are drawn to scale, and labels that do
  // not fit are shortened to their letter.
  int columns = 0;
};

// The rows and the summary line, each ending in a newline. An action that takes several slots is
// followed by dashes to its end; actions that take no time are left out; a dot is an idle slot.
// Throws UsageError for more than most_cells cells (labels.h).
std::string to_text_grid(const schedule::Timeline& timeline, const TextGridOptions& options = {});

// The summary line alone, without a newline. Idle is given under both its names, never one.
std::string summary(const schedule::Timeline& timeline);

}  // namespace trestle::view
