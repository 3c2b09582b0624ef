#include "trestle/view/page/timeline_drawing.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "trestle/view/labels.h"
#include "trestle/view/time_axis.h"

namespace trestle::view {
namespace {

using Json = nlohmann::ordered_json;
using schedule::Event;
using schedule::Timeline;

// The drawing's unit of time: a hundred-thousandth of the step, finer than a pixel.
constexpr double units = 1e5;

bool drawn_cell(const Event& event, const Timeline& timeline) {
  return takes_rank(event) && event.rank >= 0 && event.rank < timeline.rank_count &&
         std::isfinite(event.begin) && std::isfinite(event.end);
}

// A part of the step. Its cells begin in it.
struct Window {
  double from = 0, to = 0;
};

class TimelineWriter {
 public:
  TimelineWriter(const Timeline& timeline, const TimelineDrawingOptions& options)
      : timeline_(timeline), most_(options.most_cells), span_(span(timeline)) {
    for (const Event& event : timeline.events)
      if (drawn_cell(event, timeline)) cells_.push_back(&event);
    std::stable_sort(cells_.begin(), cells_.end(),
                     [](const Event* a, const Event* b) { return a->begin < b->begin; });
  }

  DrawnTimeline write() {
    Json json = {{"seconds", span_.length()}, {"names", Json::array()}};
    for (int rank = 0; rank < timeline_.rank_count; ++rank)
      json["names"].push_back(schedule::rank_name(timeline_, rank));
    json["windows"] = Json::array();
    for (const Window& window : windows()) json["windows"].push_back(window_json(window));
    json["kinds"] = kinds_;
    json["hidden"] = cells_.size() - drawn_;
    return {.json = json.dump(-1, ' ', false, Json::error_handler_t::replace),
            .cells = drawn_,
            .hidden = cells_.size() - drawn_};
  }

 private:
  // Half of the cells at the begin and half at the end, in windows of equal length.
  std::vector<Window> windows() const {
    if (cells_.size() <= most_ || most_ < 2) return {{span_.begin, span_.end}};
    const std::size_t half = most_ / 2;
    const double head = cells_[half - 1]->begin - span_.begin;
    const double tail = span_.end - cells_[cells_.size() - half]->begin;
    const double length = std::min(head, tail);
    return {{span_.begin, span_.begin + length}, {span_.end - length, span_.end}};
  }

  std::int64_t unit_of(double time) const {
    const double length = span_.length();
    return length > 0 ? std::llround((time - span_.begin) / length * units) : 0;
  }

  std::size_t number_of_kind(schedule::Kind kind) {
    const std::string letter = kind_letter(kind);
    for (std::size_t i = 0; i < kinds_.size(); ++i)
      if (kinds_[i][0] == letter) return i;
    kinds_.push_back({letter, kind_name(kind)});
    return kinds_.size() - 1;
  }

  // For each rank: kind, micro-batch, begin and duration of each cell, one after another.
  Json window_json(const Window& window) {
    std::vector<Json> rows(static_cast<std::size_t>(timeline_.rank_count), Json::array());
    for (const Event* cell : cells_) {
      if (cell->begin < window.from || cell->begin >= window.to) continue;
      Json& row = rows[static_cast<std::size_t>(cell->rank)];
      const std::int64_t begin = unit_of(cell->begin);
      row.push_back(number_of_kind(cell->action.kind));
      row.push_back(cell->action.micro_batch);
      row.push_back(begin);
      row.push_back(unit_of(cell->end) - begin);
      ++drawn_;
    }
    return {{"from", unit_of(window.from)}, {"to", unit_of(window.to)}, {"rows", rows}};
  }

  const Timeline& timeline_;
  std::size_t most_;
  Span span_;
  std::vector<const Event*> cells_;  // by their begins
  Json kinds_ = Json::array();       // [letter, name]
  std::size_t drawn_ = 0;
};

}  // namespace

DrawnTimeline timeline_drawing(const Timeline& timeline, const TimelineDrawingOptions& options) {
  return TimelineWriter(timeline, options).write();
}

}  // namespace trestle::view
