#pragma once

#include <string>
#include <vector>

#include "trestle/schedule/timeline.h"
#include "trestle/view/time_axis.h"

// Draws a schedule's timelines as SVG.
//
//   write_file("1f1b_4x8.svg", to_svg({simulated, measured}, {.title = "1F1B, 4 stages"}));
//
// Each timeline is a panel. Panels are stacked and share a time axis. In a panel each rank is a row
// and time runs to the right:
//
// - computation is a cell with its micro-batch number, if the cell is wide enough;
// - unshards and reductions that overlap computation are strips at the row's lower edge;
// - idle time is hatched;
// - a skip is a thin arrow from the producer's F to the consumer's F; its gradient's arrow is
// dashed;
// - below each rank is an area chart of its memory, with the peak beside it. A timeline without
//   memory shows the number of live micro-batches instead. All ranks and panels share its scale;
// - below the ranks each host has a row with what leaves it through its link: messages and
//   collectives while they hold the link. In a measured timeline a message is drawn until it was
//   used.
namespace trestle::view {

enum class MemoryCharts { Show, Hide };
enum class SkipArrows { Show, Hide };

struct SvgOptions {
  std::string title = {};  // drawn at the top; empty = the first panel's title
  TimeUnit unit = TimeUnit::Auto;
  double width = 0;  // pixels; 0 = between 900 and 2400, so that numbers fit their cells
  MemoryCharts memory = MemoryCharts::Show;
  SkipArrows skips = SkipArrows::Show;
};

// Skips events of ranks that do not exist and times that are not finite. Throws UsageError for more
// than most_cells cells (labels.h).
std::string to_svg(const std::vector<schedule::Timeline>& panels, const SvgOptions& options = {});

}  // namespace trestle::view
