#include "trestle/plan/page/plan_data.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/plan/page/machine_figures.h"
#include "trestle/plan/page/plan_columns.h"
#include "trestle/view/page/timeline_drawing.h"

namespace trestle::plan {
namespace {

using PageJson = nlohmann::ordered_json;

PageJson bytes_json(double bytes) { return std::llround(std::min(bytes, 9e18)); }

PageJson step_words(double seconds, const Machine& machine) {
  return text(format_duration(seconds), " (", format_duration(least_seconds(seconds, machine)),
              " to ", format_duration(most_seconds(seconds, machine)), ")");
}

// Numbers words from 0 in the order of their first use.
class Words {
 public:
  std::size_t number(const std::string& word) {
    const auto [known, added] = numbers_.try_emplace(word, words_.size());
    if (added) words_.push_back(word);
    return known->second;
  }
  const std::vector<std::string>& all() const { return words_; }

 private:
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::string> words_;
};

class PlanPageData {
 public:
  PlanPageData(const ReportOf& report, const PlanPageOptions& options)
      : report_(report),
        options_(options),
        plans_(report.result.table.empty() ? report.result.best : report.result.table) {}

  std::string write() {
    PageJson json = {{"goal", to_string(report_.request.goal)},
                     {"best", report_.result.best.size()},
                     {"available", available()}};
    json["columns"] = columns();
    json["plans"] = PageJson::array();
    for (const Plan& plan : plans_) json["plans"].push_back(plan_json_of(plan));
    json["map"] = map();
    json["rules"] = rules();
    json["too_large"] = PageJson::array();
    for (const TooLarge& large : report_.result.too_large)
      json["too_large"].push_back(too_large(large));
    if (report_.result.least_memory) json["least"] = least(*report_.result.least_memory);
    json["lines"] = lines_.all();  // after all ledgers
    json["figures"] = PageJson::array();
    for (const PageFigure& figure : machine_figures(report_))
      json["figures"].push_back({figure.name, figure.words, figure.is, figure.from});
    return json.dump(-1, ' ', false, PageJson::error_handler_t::replace);
  }

 private:
  PageJson available() const {
    return has_memory_limit(report_.result) ? bytes_json(report_.result.available)
                                            : PageJson(nullptr);
  }

  PageJson columns() {
    PageJson list = PageJson::array();
    for (const PlanColumn& column : plan_columns(report_)) {
      list.push_back({{"heading", column.heading},
                      {"help", column.help},
                      {"is", to_string(column.is)},
                      {"number", column.by == PlanColumn::By::Number},
                      {"brief", column.row == PlanColumn::Row::Always}});
      columns_.push_back(column);
    }
    return list;
  }

  PageJson cells(const Plan& plan) const {
    PageJson list = PageJson::array();
    for (const PlanColumn& column : columns_) {
      const PlanCell cell = column.cell(report_, plan);
      if (column.by == PlanColumn::By::Words)
        list.push_back(cell.words);
      else
        list.push_back({cell.words, cell.value});
    }
    return list;
  }

  // [first stage, last stage, [line, bytes, line, bytes, ...]]
  PageJson stage_json(int first, int last, const Ledger& ledger) {
    PageJson lines = PageJson::array();
    for (const LedgerLine& line : lines_of(ledger)) {
      lines.push_back(lines_.number(std::string(line.name)));
      lines.push_back(bytes_json(line.bytes));
    }
    return {first, last, lines};
  }

  // Stages with equal bytes together, in order.
  PageJson stages(const Plan& plan) {
    PageJson list = PageJson::array();
    const std::vector<Ledger> ledgers = report_.model.ledgers(plan.strategy, plan.micro_batches);
    for (std::size_t first = 0; first < ledgers.size();) {
      PageJson same = stage_json(0, 0, ledgers[first]).back();
      std::size_t next = first + 1;
      while (next < ledgers.size() && stage_json(0, 0, ledgers[next]).back() == same) ++next;
      list.push_back({first, next - 1, std::move(same)});
      first = next;
    }
    return list;
  }

  PageJson plan_json_of(const Plan& plan) {
    const std::vector<Plan>& front = report_.result.front;
    const bool in_front = std::any_of(front.begin(), front.end(), [&](const Plan& other) {
      return other.strategy == plan.strategy;
    });
    PageJson json = {
        {"name", to_string(plan.strategy)},
        {"cells", cells(plan)},
        {"range", step_words(plan.step.seconds, report_.machine)},
        {"split", {plan.step.compute, plan.step.exposed, plan.step.bubble, plan.step.optimizer}},
        {"slowest", plan.step.slowest_stage},
        {"fullest", plan.worst.stage}};
    if (in_front) json["front"] = true;
    const Plan& best = plans_.front();
    if (&plan != &best) json["lost"] = why_lost(report_, plan, best);
    json["micro_batches"] = plan.micro_batches;
    if (static_cast<std::size_t>(plan.strategy.pipeline) <= options_.stages - stages_) {
      json["stages"] = stages(plan);
      stages_ += json["stages"].size();
    } else {
      json["worst"] = true;  // that stage alone
      json["stages"] = PageJson::array();
      json["stages"].push_back(stage_json(plan.worst.stage, plan.worst.stage, plan.worst));
    }
    add_timeline(plan, &json);
    return json;
  }

  void add_timeline(const Plan& plan, PageJson* json) {
    const auto actions = static_cast<double>(plan.micro_batches) * plan.strategy.pipeline;
    if (2 * actions > static_cast<double>(options_.cells_to_simulate)) {
      (*json)["no_timeline"] = text("Its step has ", format_count(std::llround(2 * actions)),
                                    " forwards and backwards, so it is not drawn.");
      return;
    }
    if (timelines_ == options_.timelines || cells_ >= options_.cells) {
      (*json)["no_timeline"] = text("The page has the timelines of its first ",
                                    counted(static_cast<std::int64_t>(timelines_), "plan"), ".");
      return;
    }
    const view::DrawnTimeline drawing = view::timeline_drawing(
        timeline_of_plan(report_, plan),
        {.most_cells = std::min(options_.cells_of_timeline, options_.cells - cells_)});
    cells_ += drawing.cells;
    ++timelines_;
    (*json)["timeline"] = PageJson::parse(drawing.json);
    if (plan.strategy.chunks > 1)
      (*json)["note"] = text(
          "The timeline is that of 1f1b; the time in which it fills and drains is "
          "divided by ",
          plan.strategy.chunks, " in the table.");
  }

  // The words of each strategy by their numbers: a page has thousands of points.
  PageJson map() {
    Words words;
    PageJson points = PageJson::array();
    for (const MapPoint& point : report_.result.map) {
      PageJson numbers = PageJson::array();
      for (const std::string& word : split_words(to_string(point.strategy)))
        numbers.push_back(words.number(word));
      constexpr double digits = 1e5;
      const double magnitude =
          std::pow(10, std::floor(std::log10(std::max(point.seconds, 1e-12)))) / digits;
      points.push_back({bytes_json(point.bytes), std::round(point.seconds / magnitude) * magnitude,
                        static_cast<int>(point.is), std::move(numbers)});
    }
    return {{"words", words.all()}, {"points", std::move(points)}};
  }

  static std::vector<std::string> split_words(const std::string& strategy) {
    constexpr std::string_view between = " · ";
    std::vector<std::string> words;
    for (std::size_t at = 0; at <= strategy.size();) {
      const std::size_t end = std::min(strategy.find(between, at), strategy.size());
      words.push_back(strategy.substr(at, end - at));
      at = end + between.size();
    }
    return words;
  }

  PageJson rules() const {
    PageJson list = PageJson::array();
    for (const RuleCount& rule : report_.result.rules)
      list.push_back({rule.rule, rule.why, rule.strategies});
    return list;
  }

  PageJson too_large(const TooLarge& large) {
    PageJson json = {{"name", to_string(large.strategy)},
                     {"overshoot", bytes_json(large.overshoot)},
                     {"bound", format_duration(large.bound)},
                     {"stages", {stage_json(large.worst.stage, large.worst.stage, large.worst)}},
                     {"changes", PageJson::array()}};
    for (const Plan& change : large.changes) {
      const double slower = change.step.seconds - large.bound;
      json["changes"].push_back(
          {to_string(change.strategy), format_duration(change.step.seconds),
           text(format_duration(std::abs(slower)), slower >= 0 ? " more than" : " less than",
                " the least that it could take"),
           format_bytes(std::llround(change.worst.total()))});
    }
    return json;
  }

  PageJson least(const TooLarge& large) {
    PageJson json = too_large(large);
    json["step"] = format_duration(report_.result.least_memory_step.seconds);
    json["devices"] = report_.result.least_devices
                          ? text(format_count(*report_.result.least_devices),
                                 " devices are the first multiple of ", report_.request.devices,
                                 " on which a strategy fits with the tensor ranks that were "
                                 "searched.")
                          : std::string("No multiple up to 64 times these devices fits.");
    return json;
  }

  const ReportOf& report_;
  const PlanPageOptions& options_;
  const std::vector<Plan>& plans_;
  std::vector<PlanColumn> columns_;
  Words lines_;
  std::size_t timelines_ = 0, cells_ = 0, stages_ = 0;
};

}  // namespace

std::string plan_page_data(const ReportOf& report, const PlanPageOptions& options) {
  return PlanPageData(report, options).write();
}

}  // namespace trestle::plan
