#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "trestle/schedule/timeline.h"

// A timeline that a page draws itself, in the reader's width and colours. It takes about 15 bytes
// for each cell, a tenth of a picture of to_svg().
namespace trestle::view {

struct DrawnTimeline {
  std::string json = {};   // for drawTimeline() of timeline_script()
  std::size_t cells = 0;   // in it
  std::size_t hidden = 0;  // left out in the middle of the step
};

struct TimelineDrawingOptions {
  // A timeline with more has its begin and its end alone.
  std::size_t most_cells = 1200;
};

// One row for each rank. Waiting is idle time.
DrawnTimeline timeline_drawing(const schedule::Timeline& timeline,
                               const TimelineDrawingOptions& options = {});

std::string_view timeline_style();
// The function drawTimeline(box, data), which fills the element `box`.
std::string_view timeline_script();

}  // namespace trestle::view
