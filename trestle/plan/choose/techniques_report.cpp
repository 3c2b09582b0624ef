#include "trestle/plan/choose/techniques_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/plan/search/memory_limit.h"

namespace trestle::plan {
namespace {

std::string size_text(double bytes) { return format_bytes(std::llround(std::min(bytes, 9e18))); }

std::string to_right(const std::string& words, int width) {
  return std::string(static_cast<std::size_t>(std::max(width - columns_of(words), 1)), ' ') + words;
}

std::string to_left(const std::string& words, int width) {
  return words + std::string(static_cast<std::size_t>(std::max(width - columns_of(words), 0)), ' ');
}

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

// The price of a row's step, for machines with one.
double price_of_step(const TechniquesOf& report, const Taken& taken) {
  return report.machine.price_per_hour->value * taken.strategy.devices() * taken.seconds / 3600;
}

bool is_by_price(const TechniquesOf& report) { return report.request.goal == Goal::Money; }

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
        << to_right(size_text(taken.peak), 12)
        << (is_by_price(report) ? to_right(money_text(price_of_step(report, taken)), 9) : "")
        << "  "
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

const TechniqueRow* best_alone(const std::vector<TechniqueRow>& rows, Goal goal) {
  const TechniqueRow* best = nullptr;
  for (const TechniqueRow& row : rows)
    if (row.plan && (best == nullptr || is_ahead(*row.plan, *best->plan, goal))) best = &row;
  return best;
}

const char* superlative(Goal goal) {
  if (goal == Goal::Memory) return "smallest";
  return goal == Goal::Money ? "cheapest" : "fastest";
}

// " · peak 1.2 GiB" or " · price 0.001": what the goal ranks by, beside the time.
std::string ranked_by(const Plan& plan, Goal goal) {
  if (goal == Goal::Memory) return text(" · peak ", size_text(plan.worst.total()));
  return goal == Goal::Money ? text(" · price ", money_text(plan.money)) : std::string();
}

// "1 of 8 devices"
std::string devices_used(const Strategy& strategy, int devices) {
  const std::string all = counted(devices, "device");
  return strategy.devices() == devices ? all : text(strategy.devices(), " of ", all);
}

void add_answer(const TechniquesOf& report, int columns, std::ostringstream& out) {
  const Goal goal = report.request.goal;
  const TechniqueRow* alone = best_alone(report.rows, goal);
  if (alone != nullptr)
    out << folded(text(superlative(goal), " alone that fits: ", alone->name, " · ",
                       format_duration(alone->plan->step.seconds), ranked_by(*alone->plan, goal),
                       " · ", to_string(alone->plan->strategy)),
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
                     size_text(best.worst.total()),
                     goal == Goal::Money ? ranked_by(best, goal) : std::string(), " · ",
                     to_string(best.strategy)),
                columns, 2)
      << "\n";
}

}  // namespace

std::string techniques_report(const TechniquesOf& report, int columns) {
  std::ostringstream out;
  const double available = report.best.result.available;
  const PlanRequest& request = report.request;
  const std::string kept = to_string(request.kept);
  out << folded(
             text(report.model.name(), " · ", counted(report.request.devices, "device"), " of ",
                  report.machine.name, " · ",
                  has_limit(available) ? text(size_text(available), " each") : "no limit of memory",
                  " · batch ", request.batch, kept.empty() ? "" : " · keeps " + kept,
                  request.goal == Goal::Time ? "" : text(" · by ", to_string(request.goal))),
             columns, 2)
      << "\n\n";
  out << to_left("technique, alone", name_width) << to_right("step", 10)
      << to_right(report.model.tokens() > 1 ? "tokens/s" : "samples/s", 11) << to_right("peak", 12)
      << (is_by_price(report) ? to_right("price", 9) : "") << "\n";
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
      if (report.machine.price_per_hour) one["price_per_step"] = price_of_step(report, taken);
    } else {
      one["why_not"] = row.not_legal;
    }
    json["techniques"].push_back(std::move(one));
  }
  for (const auto& [key, goal] :
       {std::pair("fastest_alone", Goal::Time), std::pair("best_alone", report.request.goal)}) {
    const TechniqueRow* alone = best_alone(report.rows, goal);
    json[key] = alone == nullptr ? Json(nullptr) : Json(alone->name);
  }
  const BestOfAll& best = report.best;
  json["take"] =
      best.result.best.empty() ? Json(nullptr) : Json(combined(best.result.best.front().strategy));
  json["best"] = Json::parse(plan_json({report.model, report.machine, best.request, best.result}));
  return json.dump();
}

}  // namespace trestle::plan
