#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trestle/schedule/timeline.h"
#include "trestle/view/time_axis.h"

// Timelines as one self-contained HTML page: schedules beside each other, or a run's predicted and
// measured step.
namespace trestle::view {

struct SchedulePageOptions {
  std::string title = {};  // empty = the first panel's
  TimeUnit unit = TimeUnit::Auto;
};

// The panels share a time axis. A reader zooms, reads the facts of an action under the pointer or
// at the keyboard's place, follows one micro-batch or one skip through the ranks, and shows all
// panels or one. Throws UsageError for more than most_cells cells (labels.h).
std::string schedule_page(const std::vector<schedule::Timeline>& panels,
                          const SchedulePageOptions& options = {});

// Parts of the page.
std::string_view schedule_style();
std::string_view schedule_script();

}  // namespace trestle::view
