#pragma once

#include <algorithm>
#include <vector>

#include "trestle/schedule/timeline.h"
#include "trestle/view/svg_writer.h"
#include "trestle/view/time_axis.h"

// The parts that to_svg() puts together. Internal to this folder.
namespace trestle::view::parts {

inline constexpr double margin = 28;         // white around everything
inline constexpr double name_column = 84;    // rank and stage names, left of the plot
inline constexpr double fact_column = 116;   // idle and peak, right of the plot
inline constexpr double row_height = 28;     // a rank's cells
inline constexpr double memory_height = 24;  // its memory chart
inline constexpr double memory_gap = 5;      // between the two
inline constexpr double rank_gap = 14;       // to the next rank

// The time axis, shared by all panels: seconds since a panel's first event to pixels.
struct Axis {
  double left = 0;
  double width = 0;
  double seconds = 1;  // what `width` stands for
  TimeUnit unit = TimeUnit::Slots;

  double x(double time) const { return left + std::clamp(time / seconds, 0.0, 1.0) * width; }
};

// A rank's use of memory (or of live activations) as steps: from `time` on it is `value`.
struct Step {
  double time = 0;
  double value = 0;
};
struct MemoryCurve {
  std::vector<Step> steps;
  double peak = 0;
  double peak_time = 0;
};

enum class MemoryKind { Bytes, LiveActivations };
MemoryKind memory_kind(const schedule::Timeline& timeline);
std::vector<MemoryCurve> memory_curves(const schedule::Timeline& timeline);  // one for each rank

// One timeline, ready to be drawn at `top`.
struct Panel {
  const schedule::Timeline* timeline = nullptr;
  Span span = {};
  double top = 0;
  double rank_pitch = 0;  // from one rank's row to the next one's
  bool has_memory = false;
  double memory_scale = 1;  // the value that fills a memory chart's height
  std::vector<MemoryCurve> memory = {};

  double row(int rank) const { return top + rank * rank_pitch; }
  double height() const { return timeline->rank_count * rank_pitch - rank_gap; }
};

// True if the event belongs on the picture at all.
bool drawable(const schedule::Event& event, const schedule::Timeline& timeline);

void draw_rows(SvgWriter& svg, const Axis& axis,
               const Panel& panel);  // names, idle, cells, idle shares
void draw_labels(SvgWriter& svg, const Axis& axis, const Panel& panel);  // numbers in the cells
void draw_memory(SvgWriter& svg, const Axis& axis, const Panel& panel);
void draw_skips(SvgWriter& svg, const Axis& axis, const Panel& panel);

// The patterns and arrow heads that the parts refer to by id; once a file.
void define_patterns(SvgWriter& svg);

}  // namespace trestle::view::parts
