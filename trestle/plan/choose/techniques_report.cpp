#include "trestle/plan/choose/techniques_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trestle/base/counted.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"

namespace trestle::plan {
namespace {

std::string size_text(double bytes) { return format_bytes(std::llround(std::min(bytes, 9e18))); }

std::string to_right(const std::string& words, int width) {
  return std::string(static_cast<std::size_t>(std::max(width - columns_of(words), 1)), ' ') + words;
}

std::string to_left(const std::string& words, int width) {
  return words + std::string(static_cast<std::size_t>(std::max(width - columns_of(words), 0)), ' ');
}

// Devices without a budget have the largest number.
bool has_limit(double bytes) { return bytes < 1e18; }

double rate_of(const TechniquesOf& report, double step_seconds) {
  return static_cast<double>(report.request.batch * report.model.tokens()) / step_seconds;
}

// The strategy of a row, whether it fits or not.
struct Taken {
  const Strategy& strategy;
  double seconds;
  double peak;
};

Taken taken_by(const TechniqueRow& row) {
  if (row.plan) return {row.plan->strategy, row.plan->step.seconds, row.plan->worst.total()};
  return {row.too_large->strategy, row.too_large_step.seconds, row.too_large->worst.total()};
}

constexpr int name_width = 16;

void add_technique(const TechniqueRow& row, const TechniquesOf& report, int columns,
                   std::ostringstream& out) {
  const std::string indent(3, ' ');
  if (!row.plan && !row.too_large) {
    out << wrapped(text(to_left(row.name, name_width), "  not possible: ", row.not_legal), columns,
                   name_width + 2)
        << "\n";
  } else {
    const Taken taken = taken_by(row);
    out << to_left(row.name, name_width) << to_right(format_duration(taken.seconds), 10)
        << to_right(format_count(std::llround(rate_of(report, taken.seconds))), 11)
        << to_right(size_text(taken.peak), 12) << "  "
        << (!row.plan ? text(size_text(row.too_large->overshoot), " too large")
            : has_limit(row.plan->headroom) ? text("fits, ", size_text(row.plan->headroom), " free")
                                            : "fits, no limit")
        << "\n";
  }
  out << wrapped(text(indent, row.when), columns, 3) << "\n";
}

// "tensor parallel with ZeRO-1 and checkpointing": the techniques that a strategy combines.
std::string combined(const Strategy& strategy) {
  std::vector<std::string> words;
  if (strategy.tensor > 1) words.emplace_back("tensor parallel");
  if (strategy.pipeline > 1) words.emplace_back("pipeline");
  if (strategy.data > 1)
    words.push_back(strategy.level == 0      ? "DDP"
                    : strategy.replicate > 1 ? "HSDP"
                    : strategy.level == 3    ? "ZeRO-3 (FSDP)"
                                             : text("ZeRO-", strategy.level));
  if (strategy.recompute != BlockRecompute::None) words.emplace_back("checkpointing");
  if (strategy.offload) words.emplace_back("offload");
  if (words.empty()) words.emplace_back("one device");
  return join(words, " + ");
}

const TechniqueRow* fastest_of(const std::vector<TechniqueRow>& rows) {
  const TechniqueRow* fastest = nullptr;
  for (const TechniqueRow& row : rows)
    if (row.plan && (fastest == nullptr || row.plan->step.seconds < fastest->plan->step.seconds))
      fastest = &row;
  return fastest;
}

// "1 of 8 devices"
std::string devices_used(const Strategy& strategy, int devices) {
  const std::string all = counted(devices, "device");
  return strategy.devices() == devices ? all : text(strategy.devices(), " of ", all);
}

void add_answer(const TechniquesOf& report, int columns, std::ostringstream& out) {
  const TechniqueRow* alone = fastest_of(report.rows);
  if (alone != nullptr)
    out << folded(text("fastest alone that fits: ", alone->name, " · ",
                       format_duration(alone->plan->step.seconds), " · ",
                       to_string(alone->plan->strategy)),
                  columns, 2)
        << "\n";
  const std::vector<Plan>& plans = report.best.result.best;
  if (plans.empty()) {
    out << wrapped(text("Nothing fits, not even combined: `trestle plan` says what is the least "
                        "memory, and on how many devices something fits."),
                   columns, 0)
        << "\n";
    return;
  }
  const Plan& best = plans.front();
  out << folded(text("take: ", combined(best.strategy), " · ",
                     devices_used(best.strategy, report.request.devices), " · ",
                     format_duration(best.step.seconds), " (",
                     format_duration(least_seconds(best.step.seconds, report.machine)), " to ",
                     format_duration(most_seconds(best.step.seconds, report.machine)), ") · ",
                     size_text(best.worst.total()), " · ", to_string(best.strategy)),
                columns, 2)
      << "\n";
}

}  // namespace

std::string techniques_report(const TechniquesOf& report, int columns) {
  std::ostringstream out;
  const double available = report.best.result.available;
  out << folded(
             text(report.model.name(), " · ", counted(report.request.devices, "device"), " of ",
                  report.machine.name, " · ",
                  has_limit(available) ? text(size_text(available), " each") : "no limit of memory",
                  " · batch ", report.request.batch),
             columns, 2)
      << "\n\n";
  out << to_left("technique, alone", name_width) << to_right("step", 10)
      << to_right(report.model.tokens() > 1 ? "tokens/s" : "samples/s", 11) << to_right("peak", 12)
      << "\n";
  for (const TechniqueRow& row : report.rows) add_technique(row, report, columns, out);
  out << "\n";
  add_answer(report, columns, out);
  out << "\n" << wrapped(report.model.sources(report.machine), columns, 0) << "\n";
  return out.str();
}

std::string techniques_json(const TechniquesOf& report) {
  using Json = nlohmann::ordered_json;
  Json json = {{"techniques", Json::array()}};
  for (const TechniqueRow& row : report.rows) {
    Json one = {{"name", row.name},
                {"when", row.when},
                {"devices", row.devices},
                {"keep", to_string(row.kept)},
                {"possible", row.plan || row.too_large},
                {"fits", row.plan.has_value()}};
    if (row.plan || row.too_large) {
      const Taken taken = taken_by(row);
      one["strategy"] = to_string(taken.strategy);
      one["step_seconds"] = taken.seconds;
      one["per_second"] = rate_of(report, taken.seconds);
      one["peak_bytes"] = std::llround(std::min(taken.peak, 9e18));
    } else {
      one["why_not"] = row.not_legal;
    }
    json["techniques"].push_back(std::move(one));
  }
  const TechniqueRow* alone = fastest_of(report.rows);
  json["fastest_alone"] = alone == nullptr ? Json(nullptr) : Json(alone->name);
  const BestOfAll& best = report.best;
  json["take"] =
      best.result.best.empty() ? Json(nullptr) : Json(combined(best.result.best.front().strategy));
  json["best"] = Json::parse(plan_json({report.model, report.machine, best.request, best.result}));
  return json.dump();
}

}  // namespace trestle::plan
