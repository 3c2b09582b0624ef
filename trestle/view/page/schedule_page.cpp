#include "trestle/view/page/schedule_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trestle/base/text.h"
#include "trestle/view/labels.h"
#include "trestle/view/page/page_frame.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_parts.h"
#include "trestle/view/svg_writer.h"
#include "trestle/view/text_grid.h"

namespace trestle::view {
namespace {

using nlohmann::ordered_json;
using schedule::Event;
using schedule::Kind;
using schedule::Timeline;

constexpr std::array drawn_kinds = {Kind::Forward,    Kind::Backward,  Kind::InputGrad,
                                    Kind::WeightGrad, Kind::Recompute, Kind::OverlapForwardBackward,
                                    Kind::Unshard,    Kind::Reshard,   Kind::ReduceGrad,
                                    Kind::Norm,       Kind::Step};

int number_of(Kind kind) {
  const auto found = std::find(drawn_kinds.begin(), drawn_kinds.end(), kind);
  return static_cast<int>(found - drawn_kinds.begin());
}

ordered_json kinds() {
  ordered_json list = ordered_json::array();
  for (const Kind kind : drawn_kinds)
    list.push_back({{"name", kind_name(kind)}, {"colour", palette::of_kind(kind)}});
  return list;
}

// [rank] its actions: [kind, stage, micro-batch, begin, end], and of an overlapped pair the
// backward's stage and micro-batch.
ordered_json rows_of(const Timeline& timeline) {
  std::vector<ordered_json> rows(static_cast<std::size_t>(timeline.rank_count),
                                 ordered_json::array());
  for (const Event& event : timeline.events) {
    if (!takes_rank(event) || event.rank < 0 || event.rank >= timeline.rank_count) continue;
    ordered_json cell = {number_of(event.action.kind), event.action.stage, event.action.micro_batch,
                         event.begin, event.end};
    if (event.action.kind == Kind::OverlapForwardBackward) {
      cell.push_back(event.action.partner_stage);
      cell.push_back(event.action.partner_micro_batch);
    }
    rows[static_cast<std::size_t>(event.rank)].push_back(std::move(cell));
  }
  return rows;
}

// The curves of the SVG: bytes, or live activations where no bytes are known.
ordered_json memory_of(const Timeline& timeline) {
  ordered_json curves = ordered_json::array(), peaks = ordered_json::array();
  for (const parts::MemoryCurve& curve : parts::memory_curves(timeline)) {
    ordered_json steps = ordered_json::array();
    for (const parts::Step& step : curve.steps)
      steps.push_back({step.time, std::llround(step.value)});
    curves.push_back(std::move(steps));
    peaks.push_back(curve.steps.empty() ? ordered_json() : ordered_json(std::llround(curve.peak)));
  }
  const bool live = parts::memory_kind(timeline) == parts::MemoryKind::LiveActivations;
  return {{"unit", live ? "live" : "bytes"}, {"curves", curves}, {"peaks", peaks}};
}

ordered_json panel_of(const Timeline& timeline) {
  ordered_json skips = ordered_json::array();
  for (const auto& route : timeline.routes)
    if (route.skip) skips.push_back({route.from_stage, route.to_stage, route.name});
  std::vector<std::string> names;
  std::vector<std::vector<int>> stages(static_cast<std::size_t>(timeline.rank_count));
  for (int rank = 0; rank < timeline.rank_count; ++rank)
    names.push_back(schedule::rank_name(timeline, rank));
  for (std::size_t stage = 0; stage < timeline.rank_of_stage.size(); ++stage)
    if (const int rank = timeline.rank_of_stage[stage]; rank >= 0 && rank < timeline.rank_count)
      stages[static_cast<std::size_t>(rank)].push_back(static_cast<int>(stage));
  return {{"title", timeline.title},
          {"summary", summary(timeline)},
          {"names", names},
          {"stages", stages},
          {"end", makespan(timeline)},
          {"microBatches", timeline.micro_batches},
          {"skips", skips},
          {"rows", rows_of(timeline)},
          {"memory", memory_of(timeline)}};
}

std::string body_of(const std::string& title) {
  return text("<h1>", xml_escape(title), "</h1>\n",
              R"(<main>
<div id="tools" class="tools screen-only"></div>
<ul id="legend" class="legend"></ul>
<div id="drawing" class="drawing" tabindex="0" role="application"
 aria-label="Timelines: arrow keys choose an action, plus and minus zoom, 0 shows the whole step"></div>
<p id="facts" class="facts" role="status">Point at an action, or press Tab and an arrow key.</p>
<details class="screen-only"><summary>Keys</summary>
<p class="quiet">Left and right choose the next action of a rank, up and down another rank. + and - zoom, 0 shows the whole
step, Page Up and Page Down move. F follows the micro-batch of the action, Escape ends that. The wheel zooms with Ctrl, and a drag
moves.</p></details>
</main>
)");
}

}  // namespace

std::string schedule_page(const std::vector<Timeline>& panels, const SchedulePageOptions& options) {
  check_size(panels);
  ordered_json data = {{"slots", resolve(options.unit, panels) == TimeUnit::Slots},
                       {"kinds", kinds()},
                       {"panels", ordered_json::array()}};
  std::string plain;
  for (const Timeline& panel : panels) {
    data["panels"].push_back(panel_of(panel));
    plain += panel.title + ": " + summary(panel) + "\n";
  }
  const std::string title = !options.title.empty() ? options.title
                            : panels.empty()       ? ""
                                                   : panels[0].title;
  return to_html({.title = title,
                  .styles = {schedule_style()},
                  .body = body_of(title),
                  .data = data.dump(-1, ' ', false, ordered_json::error_handler_t::replace),
                  .scripts = {schedule_script()},
                  .without_script = plain});
}

}  // namespace trestle::view
