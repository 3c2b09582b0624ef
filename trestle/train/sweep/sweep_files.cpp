#include "trestle/train/sweep/sweep_files.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "trestle/base/counted.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/data/files/image_file.h"
#include "trestle/train/progress/run_plan.h"

namespace trestle::train {

namespace {

std::string csv_cell(const std::string& words) {
  if (words.find_first_of(",\"\n\r") == std::string::npos) return words;
  std::string quoted = "\"";
  for (const char letter : words)
    quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return quoted + '"';
}

std::string csv_number(bool is_there, double number) { return is_there ? text(number) : ""; }

// The index of the axis of the curves; -1 for bars.
int curve_axis(const std::vector<SweepAxis>& axes) {
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (axes[i].is_number && axes[i].values.size() > 1) return static_cast<int>(i);
  return -1;
}

view::ChartPoint point_of(const SweepRow& row, double scale) {
  view::ChartPoint point{.value = std::numeric_limits<double>::quiet_NaN()};
  if (!row.measured()) return point;
  point.value = scale * row.seconds();
  point.low = scale * row.fastest();
  point.high = scale * row.slowest();
  if (row.predicted_seconds() > 0) point.predicted = scale * row.predicted_seconds();
  return point;
}

std::string one_line(const nlohmann::json& event) {
  return event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The name of the row's curve: its recipe and all values except the one along the curve.
std::string series_of(const SweepResult& result, const SweepRow& row, int along, bool with_recipe) {
  std::vector<std::string> parts;
  if (with_recipe) parts.push_back(row.recipe);
  for (std::size_t i = 0; i < result.axes.size(); ++i) {
    if (static_cast<int>(i) == along || result.axes[i].values.size() < 2) continue;
    const std::string& key = result.axes[i].key;
    parts.push_back(text(key.substr(key.find('.') + 1), " ", row.values[i]));
  }
  return join(parts, ", ");
}

}  // namespace

std::string to_csv(const SweepResult& result) {
  std::vector<std::string> cells = {"recipe"};
  for (const SweepAxis& axis : result.axes) cells.push_back(axis.key);
  for (const char* name : {"micro_batches", "runs", "seconds", "fastest", "slowest", "predicted",
                           "optimizer", "error", "schedule"})
    cells.emplace_back(name);
  std::string file = join(cells, ",") + "\n";
  for (const SweepRow& row : result.rows) {
    cells = {csv_cell(row.recipe)};
    for (const std::string& value : row.values) cells.push_back(csv_cell(value));
    const bool there = row.measured();
    cells.push_back(there ? text(row.micro_batches) : "");
    cells.push_back(text(row.runs.size()));
    cells.push_back(csv_number(there, row.seconds()));
    cells.push_back(csv_number(there, row.fastest()));
    cells.push_back(csv_number(there, row.slowest()));
    cells.push_back(csv_number(!row.predicted.empty(), row.predicted_seconds()));
    cells.push_back(csv_number(there, row.optimizer_seconds));
    cells.push_back(csv_cell(row.error));
    cells.push_back(csv_cell(row.schedule));
    file += join(cells, ",") + "\n";
  }
  return file;
}

std::string to_json(const SweepResult& result) {
  using nlohmann::json;
  json points = json::array();
  for (const SweepRow& row : result.rows) {
    json values = json::object();
    for (std::size_t i = 0; i < result.axes.size(); ++i) values[result.axes[i].key] = row.values[i];
    json point = {{"recipe", row.recipe}, {"values", values}, {"runs", row.runs}};
    if (row.measured()) {
      point["seconds"] = row.seconds();
      point["fastest"] = row.fastest();
      point["slowest"] = row.slowest();
      point["optimizer"] = row.optimizer_seconds;
      point["micro_batches"] = row.micro_batches;
      point["schedule"] = row.schedule;
      point["devices"] = row.devices;
    }
    if (!row.predicted.empty()) point["predicted"] = row.predicted_seconds();
    if (!row.error.empty()) point["error"] = row.error;
    points.push_back(std::move(point));
  }
  json file = {{"versions", versions()},
               {"warm_up", result.warm_up},
               {"steps", result.steps},
               {"finished", result.finished},
               {"points", points}};
  if (result.best >= 0) file["best"] = result.best;
  return file.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string plan_event(const SweepRow& row, int runs) {
  return one_line(
      {{"event", "point"}, {"point", row.name}, {"runs", runs}, {"measured", row.runs.size()}});
}

std::string run_event(const SweepRow& row, std::int64_t done, std::int64_t all) {
  nlohmann::json event = {{"event", "run"}, {"point", row.name}, {"done", done}, {"all", all}};
  if (!row.error.empty()) {
    event["error"] = row.error;
  } else {
    event["seconds"] = row.runs.back();
    if (!row.predicted.empty()) event["predicted"] = row.predicted.back();
  }
  return one_line(event);
}

std::string done_event(const SweepResult& result) {
  nlohmann::json event = {{"event", "done"}, {"finished", result.finished}};
  if (result.best >= 0) {
    const SweepRow& best = result.rows[static_cast<std::size_t>(result.best)];
    event["best"] = best.name;
    event["seconds"] = best.seconds();
  }
  for (const std::filesystem::path& file : result.files) event["files"].push_back(file.string());
  return one_line(event);
}

view::Chart chart_of(const SweepResult& result) {
  double longest = 0;
  std::set<std::string> recipes, devices;
  for (const SweepRow& row : result.rows) {
    longest = std::max({longest, row.slowest(), row.predicted_seconds()});
    recipes.insert(row.recipe);
    if (!row.devices.empty()) devices.insert(row.devices);
  }
  const bool in_seconds = longest >= 1;
  const double scale = in_seconds ? 1 : 1000;
  const int along = curve_axis(result.axes);
  view::Chart chart;
  chart.y_label = in_seconds ? "seconds per step" : "milliseconds per step";
  chart.title = join(recipes, ", ");
  if (recipes.size() > 2) chart.title = text(recipes.size(), " recipes");
  const std::size_t runs =
      std::max_element(result.rows.begin(), result.rows.end(), [](const auto& a, const auto& b) {
        return a.runs.size() < b.runs.size();
      })->runs.size();
  chart.subtitle = text("median of ", counted(static_cast<std::int64_t>(runs), "run"),
                        runs == 1 ? "" : ", bars: fastest to slowest");
  if (devices.size() == 1) chart.subtitle = text(*devices.begin(), " · ", chart.subtitle);
  if (along < 0) {
    chart.kind = view::Chart::Kind::Bars;
    chart.series.push_back({});
    for (const SweepRow& row : result.rows) {
      const std::string words = series_of(result, row, -1, recipes.size() > 1);
      chart.labels.push_back(words.empty() ? row.recipe : words);
      chart.series[0].points.push_back(point_of(row, scale));
    }
    return chart;
  }
  const auto at = static_cast<std::size_t>(along);
  chart.x_label = result.axes[at].key;
  chart.labels = result.axes[at].values;
  for (const SweepRow& row : result.rows) {
    const std::string name = series_of(result, row, along, recipes.size() > 1);
    auto series = std::find_if(chart.series.begin(), chart.series.end(),
                               [&](const view::ChartSeries& known) { return known.name == name; });
    if (series == chart.series.end()) {
      chart.series.push_back({.name = name, .points = {}});
      series = std::prev(chart.series.end());
    }
    series->points.push_back(point_of(row, scale));
  }
  return chart;
}

std::vector<std::filesystem::path> sweep_files(const std::filesystem::path& folder) {
  return {folder / "sweep.csv", folder / "sweep.json", folder / "sweep.svg", folder / "sweep.png"};
}

std::vector<std::filesystem::path> write_sweep_files(const SweepResult& result,
                                                     const std::filesystem::path& folder) {
  const view::Chart chart = chart_of(result);
  const std::vector<std::filesystem::path> files = sweep_files(folder);
  write_file(files[0], to_csv(result));
  write_file(files[1], to_json(result));
  write_file(files[2], view::to_svg(chart));
  data::write_png(files[3], view::to_pixels(chart));
  return files;
}

}  // namespace trestle::train
