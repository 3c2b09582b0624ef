#include <algorithm>
#include <cmath>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_parts.h"

// The area chart of memory below each rank.
namespace trestle::view::parts {
namespace {

using schedule::Timeline;

void add_step(MemoryCurve& curve, double time, double value) {
  if (curve.steps.empty() || value > curve.peak) {
    curve.peak = value;
    curve.peak_time = time;
  }
  curve.steps.push_back({.time = time, .value = value});
}

std::vector<MemoryCurve> byte_curves(const Timeline& timeline) {
  std::vector<MemoryCurve> curves(static_cast<std::size_t>(timeline.rank_count));
  for (const schedule::MemorySample& sample : timeline.memory) {
    if (sample.rank < 0 || sample.rank >= timeline.rank_count || !std::isfinite(sample.time)) {
      continue;
    }
    add_step(curves[sample.rank], sample.time, static_cast<double>(sample.bytes));
  }
  return curves;
}

// The number of live micro-batches, counted once for each stage.
std::vector<MemoryCurve> live_curves(const Timeline& timeline) {
  std::vector<std::vector<std::pair<double, int>>> changes(
      static_cast<std::size_t>(timeline.rank_count));
  for (const schedule::ActivationLife& life : schedule::activation_lives(timeline)) {
    if (life.rank < 0 || life.rank >= timeline.rank_count) continue;
    auto& of_rank = changes[static_cast<std::size_t>(life.rank)];
    if (std::isfinite(life.begin)) of_rank.emplace_back(life.begin, 1);
    if (std::isfinite(life.end)) of_rank.emplace_back(life.end, -1);
  }
  for (auto& of_rank : changes) std::sort(of_rank.begin(), of_rank.end());
  std::vector<MemoryCurve> curves(changes.size());
  for (std::size_t rank = 0; rank < changes.size(); ++rank) {
    int live = 0;
    for (auto at = changes[rank].begin(); at != changes[rank].end();) {
      const double time = at->first;  // ends and begins at the same time cancel out
      for (; at != changes[rank].end() && at->first == time; ++at) live += at->second;
      add_step(curves[rank], time, live);
    }
  }
  return curves;
}

// Merges steps within half a pixel into one step with their maximum.
std::vector<Step> thinned(const std::vector<Step>& steps, double half_pixel) {
  std::vector<Step> result;
  double cell = 0;
  for (const Step& step : steps) {
    const double here = std::floor(step.time / half_pixel);
    if (result.size() >= 2 && here == cell && result[result.size() - 2].time >= here * half_pixel) {
      Step& highest = result[result.size() - 2];
      highest.value = std::max(highest.value, result.back().value);
      result.back() = step;
    } else {
      result.push_back(step);
    }
    cell = here;
  }
  return result;
}

std::string peak_text(const Panel& panel, double peak) {
  if (memory_kind(*panel.timeline) == MemoryKind::Bytes) {
    return text("peak ", format_bytes(static_cast<Bytes>(peak)));
  }
  return text("peak ", static_cast<int>(peak), " live");
}

}  // namespace

MemoryKind memory_kind(const Timeline& timeline) {
  const bool has_bytes = std::any_of(timeline.memory.begin(), timeline.memory.end(),
                                     [](const auto& sample) { return sample.bytes > 0; });
  return has_bytes ? MemoryKind::Bytes : MemoryKind::LiveActivations;
}

std::vector<MemoryCurve> memory_curves(const Timeline& timeline) {
  return memory_kind(timeline) == MemoryKind::Bytes ? byte_curves(timeline) : live_curves(timeline);
}

void draw_memory(SvgWriter& svg, const Axis& axis, const Panel& panel) {
  const double end = axis.x(panel.span.length());
  for (int rank = 0; rank < panel.timeline->rank_count; ++rank) {
    const MemoryCurve& curve = panel.memory[rank];
    const double base = panel.row(rank) + row_height + memory_gap + memory_height;
    const auto x = [&](double time) { return axis.x(time - panel.span.begin); };
    const auto y = [&](double value) {
      return base - std::clamp(value / panel.memory_scale, 0.0, 1.0) * memory_height;
    };
    Path outline;
    double level = 0;
    outline.move(axis.left, base);
    for (const Step& step : thinned(curve.steps, axis.seconds / axis.width / 2)) {
      outline.line(x(step.time), y(level)).line(x(step.time), y(step.value));
      level = step.value;
    }
    outline.line(end, y(level)).line(end, base).close();
    svg.open("g", {{"class", "memory"}});
    svg.element("path", {{"d", outline.text()},
                         {"fill", palette::memory_colour},
                         {"stroke", palette::memory_line_colour},
                         {"stroke-width", 0.8},
                         {"stroke-linejoin", "round"}});
    const std::string kind =
        memory_kind(*panel.timeline) == MemoryKind::Bytes ? "memory" : "activations";
    svg.text(margin, base - 1, kind, {{"font-size", 10.5}, {"fill", palette::quiet_colour}});
    if (!curve.steps.empty()) {
      svg.element("circle", {{"class", "peak"},
                             {"cx", x(curve.peak_time)},
                             {"cy", y(curve.peak)},
                             {"r", 2.2},
                             {"fill", palette::ink_colour}});
      svg.text(axis.left + axis.width + 12, base - memory_height / 2 + 4,
               peak_text(panel, curve.peak), {{"font-size", 11}, {"fill", palette::ink_colour}});
    }
    svg.close();
  }
}

}  // namespace trestle::view::parts
