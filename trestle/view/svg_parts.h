#pragma once

#include <algorithm>
#include <vector>

#include "trestle/schedule/timeline.h"
#include "trestle/view/svg_writer.h"
#include "trestle/view/time_axis.h"

// The parts of a picture that to_svg() draws. Not installed.
namespace trestle::view::parts {

inline constexpr double margin = 28;         // white space around the picture
inline constexpr double name_column = 84;    // rank and stage names, left of the plot
inline constexpr double fact_column = 116;   // idle and peak, right of the plot
inline constexpr double row_height = 28;     // height of a rank's cells
inline constexpr double memory_height = 24;  // height of its memory chart
inline constexpr double memory_gap = 5;      // between the two
inline constexpr double rank_gap = 14;       // to the next rank
inline constexpr double host_height = 14;    // height of the row of a host's link
inline constexpr double host_pitch = 22;     // distance between two of them

// The time axis of all panels: maps seconds since a panel's first event to pixels.
struct Axis {
  double left = 0;
  double width = 0;
  double seconds = 1;  // the time that `width` represents
  TimeUnit unit = TimeUnit::Slots;

  double x(double time) const { return left + std::clamp(time / seconds, 0.0, 1.0) * width; }
};

// A rank's memory use (or live activations) as steps: from `time` on it is `value`.
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

// A timeline with its layout.
struct Panel {
  const schedule::Timeline* timeline = nullptr;
  Span span = {};
  double top = 0;
  double rank_pitch = 0;  // distance between two ranks' rows
  bool has_memory = false;
  double memory_scale = 1;  // the value at a memory chart's full height
  std::vector<MemoryCurve> memory = {};

  std::vector<int> hosts = {};  // with a row for what leaves them

  double row(int rank) const { return top + rank * rank_pitch; }
  double host_row(std::size_t index) const {
    return row(timeline->rank_count) + static_cast<double>(index) * host_pitch;
  }
  double height() const { return host_row(hosts.size()) - rank_gap - top; }
};

// True if the event's rank exists and its times are finite.
bool drawable(const schedule::Event& event, const schedule::Timeline& timeline);

void draw_rows(SvgWriter& svg, const Axis& axis,
               const Panel& panel);  // names, idle, cells, idle shares
void draw_labels(SvgWriter& svg, const Axis& axis, const Panel& panel);  // numbers in the cells
void draw_memory(SvgWriter& svg, const Axis& axis, const Panel& panel);
void draw_tensor_messages(SvgWriter& svg, const Axis& axis, const Panel& panel);
void draw_hosts(SvgWriter& svg, const Axis& axis, const Panel& panel);  // what leaves each host
void draw_skips(SvgWriter& svg, const Axis& axis, const Panel& panel);

// The patterns and arrow heads that other elements refer to by id. Call it once for each file.
void define_patterns(SvgWriter& svg);

}  // namespace trestle::view::parts
