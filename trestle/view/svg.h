#pragma once

#include <string>
#include <vector>

#include "trestle/schedule/timeline.h"
#include "trestle/view/time_axis.h"

// The picture of a schedule.
//
//   write_file("1f1b_4x8.svg", to_svg({simulated, measured}, {.title = "1F1B, 4 stages"}));
//
// One panel for each timeline, one above the other, all on the same time axis. In a panel ranks are
// rows and time runs to the right: cells of compute with their micro-batch numbers (left out where
// a cell is too narrow), gathers and reductions that go on beside them as strips at a row's lower edge, idle time hatched, skips as thin arrows from the producer's F to the
// consumer's F and dashed for their gradients, and under each rank a small area chart of its memory
// with the peak beside it. A timeline without memory shows the number of micro-batches whose
// activations are alive instead. The chart's scale is the same for all ranks and panels.
namespace trestle::view {

enum class MemoryCharts { Show, Hide };
enum class SkipArrows { Show, Hide };

struct SvgOptions {
  std::string title = {};  // drawn on top; empty = the first panel's title
  TimeUnit unit = TimeUnit::Auto;
  double width = 0;  // pixels; 0 = wide enough for the numbers in the cells, within 900 to 2400
  MemoryCharts memory = MemoryCharts::Show;
  SkipArrows skips = SkipArrows::Show;
};

// Events of ranks that do not exist and times that are not finite are left out. Throws UsageError
// for more than most_cells cells (labels.h).
std::string to_svg(const std::vector<schedule::Timeline>& panels, const SvgOptions& options = {});

}  // namespace trestle::view
