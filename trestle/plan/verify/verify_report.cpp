#include "trestle/plan/verify/verify_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/plan/search/plan_report.h"

namespace trestle::plan {

namespace {

using Json = nlohmann::ordered_json;

std::string bytes_words(double bytes) { return format_bytes(std::llround(bytes)); }

// "+3.1 %", "-0.4 %", "0 %".
std::string signed_percent(double share) {
  const double rounded = std::round(1000 * share) / 10;
  if (rounded == 0) return "0 %";
  return text(rounded > 0 ? "+" : "", rounded, " %");
}

std::string percent_words(double share) { return text(std::round(1000 * share) / 10, " %"); }

std::string cell(const std::string& words, int width) {
  return std::string(static_cast<std::size_t>(std::max(width - columns_of(words), 1)), ' ') + words;
}

bool lies_in_range(const VerifiedPlan& plan, const Machine& machine) {
  return plan.seconds() >= least_seconds(plan.predicted_seconds, machine) &&
         plan.seconds() <= most_seconds(plan.predicted_seconds, machine);
}

int measured_plans(const Verification& verification) {
  int count = 0;
  for (const VerifiedPlan& plan : verification.plans) count += plan.measured() ? 1 : 0;
  return count;
}

bool has_peaks(const Verification& verification) {
  return std::any_of(verification.plans.begin(), verification.plans.end(),
                     [](const VerifiedPlan& plan) { return plan.measured() && plan.peak() > 0; });
}

int plans_in_range(const Verification& verification, const Machine& machine) {
  int count = 0;
  for (const VerifiedPlan& plan : verification.plans)
    count += plan.measured() && lies_in_range(plan, machine) ? 1 : 0;
  return count;
}

void add_row(const VerifiedPlan& plan, int number, int columns, std::ostringstream& out) {
  out << cell(text(number), 2) << cell(format_duration(plan.predicted_seconds), 11);
  if (plan.measured()) {
    out << cell(format_duration(plan.seconds()), 10) << cell(signed_percent(plan.time_error()), 9)
        << cell(percent_words(plan.spread()), 9) << cell(bytes_words(plan.predicted_peak), 13);
    if (plan.peak() > 0)
      out << cell(bytes_words(plan.peak()), 11) << cell(signed_percent(plan.peak_error()), 8);
    else
      out << cell("no meter", 11);
  }
  out << "\n" << folded("    " + to_string(plan.strategy), columns, 4) << "\n";
  if (!plan.error.empty()) {
    std::string reason = plan.error;
    while (!reason.empty() && reason.back() == '\n') reason.pop_back();
    for (std::size_t at = reason.find('\n'); at != std::string::npos;
         at = reason.find('\n', at + 5))
      reason.replace(at, 1, "\n    ");
    out << "    failed: " << reason << "\n";
  } else if (!plan.measured()) {
    out << "    not measured\n";
  }
}

std::string pick_words(const Verification& verification) {
  const auto regret = verification.regret();
  const auto best = verification.best();
  if (!regret || measured_plans(verification) < 2) return "";
  const VerifiedPlan& pick = verification.plans.front();
  if (*best == 0) return "Plan 1, the pick, is the fastest that was measured.";
  const VerifiedPlan& winner = verification.plans[*best];
  const double spread = std::max(pick.spread(), winner.spread());
  return text("Plan ", *best + 1, " is the fastest that was measured. Plan 1, the pick, is ",
              percent_words(*regret), " slower",
              *regret <= spread
                  ? text(", which is within the range of their own runs, ", percent_words(spread))
                  : "",
              ".");
}

Json plan_of(const VerifiedPlan& plan, const Machine& machine) {
  Json json = {{"strategy", to_string(plan.strategy)},
               {"simulated_step_seconds", plan.predicted_seconds},
               {"simulated_peak_bytes", std::llround(plan.predicted_peak)}};
  if (!plan.error.empty()) json["error"] = plan.error;
  if (!plan.measured()) return json;
  json["measured_step_seconds"] = plan.seconds();
  json["measured_runs_seconds"] = plan.runs;
  json["runs_spread"] = plan.spread();
  json["time_error"] = plan.time_error();
  json["in_range"] = lies_in_range(plan, machine);
  if (plan.peak() <= 0) return json;
  json["measured_peak_bytes"] = std::llround(plan.peak());
  json["peak_error"] = plan.peak_error();
  json["measured_peaks"] = Json::array();
  for (const MeasuredPeak& peak : plan.peaks)
    json["measured_peaks"].push_back(
        {{"device", peak.device}, {"bytes", std::llround(peak.bytes)}});
  return json;
}

}  // namespace

std::string verify_report(const Verification& verification, const Machine& machine, int columns) {
  std::ostringstream out;
  out << " #" << cell("simulated", 11) << cell("measured", 10) << cell("error", 9)
      << cell("spread", 9) << cell("peak, paper", 13) << cell("measured", 11) << cell("error", 8)
      << "\n";
  int number = 0;
  for (const VerifiedPlan& plan : verification.plans) add_row(plan, ++number, columns, out);
  out << "\n";
  const int measured = measured_plans(verification);
  if (!verification.finished)
    out << wrapped("Stopped: the figures are those of the runs so far.", columns, 0) << "\n";
  if (measured == 0) return out.str();
  const std::string pick = pick_words(verification);
  if (!pick.empty()) out << wrapped(pick, columns, 0) << "\n";
  const std::string peaks = has_peaks(verification)
                                ? text(", peaks by ", percent_words(verification.mean_peak_error()))
                                : "; no device has a meter of its peak";
  out << wrapped(
             text("Times differ by ", percent_words(verification.mean_time_error()), " on average",
                  peaks, ". ", plans_in_range(verification, machine), " of ", measured,
                  " measured times lie in the range of the prediction. Each plan ran ",
                  verification.finished ? "" : "up to ", counted(verification.rounds, "time"),
                  ", in turn with the other plans; its time is the median, and its spread is "
                  "the slowest run less the fastest, over the median."),
             columns, 0)
      << "\n";
  return out.str();
}

std::string verify_json(const Verification& verification, const Machine& machine) {
  Json json = {{"plans", Json::array()},
               {"finished", verification.finished},
               {"rounds", verification.rounds}};
  for (const VerifiedPlan& plan : verification.plans)
    json["plans"].push_back(plan_of(plan, machine));
  const auto regret = verification.regret();
  json["pick_is_best"] = regret ? Json(*verification.best() == 0) : Json(nullptr);
  json["regret"] = regret ? Json(*regret) : Json(nullptr);
  json["measured_plans"] = measured_plans(verification);
  json["in_range"] = plans_in_range(verification, machine);
  const auto if_measured = [](bool measured, double value) {
    return measured ? Json(value) : Json(nullptr);
  };
  const bool any = measured_plans(verification) > 0;
  json["mean_time_error"] = if_measured(any, verification.mean_time_error());
  json["mean_peak_error"] = if_measured(has_peaks(verification), verification.mean_peak_error());
  json["widest_spread"] = if_measured(any, verification.widest_spread());
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace trestle::plan
