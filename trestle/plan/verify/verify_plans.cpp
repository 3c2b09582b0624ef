#include "trestle/plan/verify/verify_plans.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/median.h"
#include "trestle/base/text.h"

namespace trestle::plan {

namespace {

void add_run(VerifiedPlan& plan, MeasuredRun run) {
  if (!run.error.empty()) {
    plan.error = std::move(run.error);
    return;
  }
  plan.runs.push_back(run.seconds);
  for (const MeasuredPeak& peak : run.peaks) {
    const auto known =
        std::find_if(plan.peaks.begin(), plan.peaks.end(),
                     [&](const MeasuredPeak& other) { return other.device == peak.device; });
    if (known == plan.peaks.end())
      plan.peaks.push_back(peak);
    else
      known->bytes = std::max(known->bytes, peak.bytes);
  }
}

double mean_error(const std::vector<VerifiedPlan>& plans, double (VerifiedPlan::*error)() const) {
  double sum = 0;
  int measured = 0;
  for (const VerifiedPlan& plan : plans) {
    if (!plan.measured()) continue;
    sum += std::abs((plan.*error)());
    ++measured;
  }
  return measured == 0 ? 0 : sum / measured;
}

}  // namespace

double VerifiedPlan::seconds() const { return median(runs); }
double VerifiedPlan::fastest() const {
  return runs.empty() ? 0 : *std::min_element(runs.begin(), runs.end());
}
double VerifiedPlan::slowest() const {
  return runs.empty() ? 0 : *std::max_element(runs.begin(), runs.end());
}
double VerifiedPlan::spread() const {
  return seconds() > 0 ? (slowest() - fastest()) / seconds() : 0;
}
double VerifiedPlan::peak() const {
  double most = 0;
  for (const MeasuredPeak& one : peaks) most = std::max(most, one.bytes);
  return most;
}
double VerifiedPlan::time_error() const {
  return seconds() > 0 ? predicted_seconds / seconds() - 1 : 0;
}
double VerifiedPlan::peak_error() const { return peak() > 0 ? predicted_peak / peak() - 1 : 0; }

std::optional<std::size_t> Verification::best() const {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (plans[i].measured() && (!best || plans[i].seconds() < plans[*best].seconds())) best = i;
  return best;
}

std::optional<double> Verification::regret() const {
  if (plans.empty() || !plans.front().measured()) return std::nullopt;
  return plans.front().seconds() / plans[*best()].seconds() - 1;
}

double Verification::mean_time_error() const {
  return mean_error(plans, &VerifiedPlan::time_error);
}
double Verification::mean_peak_error() const {
  return mean_error(plans, &VerifiedPlan::peak_error);
}
double Verification::widest_spread() const {
  double widest = 0;
  for (const VerifiedPlan& plan : plans)
    if (plan.measured()) widest = std::max(widest, plan.spread());
  return widest;
}

Verification verify_plans(std::vector<VerifiedPlan> plans, const VerifyOptions& options,
                          const std::function<std::optional<MeasuredRun>(std::size_t)>& run) {
  if (options.rounds < 1)
    throw UsageError(text("plans are verified in ", options.rounds, " rounds"),
                     {.hint = "Give at least 1."});
  Verification result{.plans = std::move(plans), .rounds = options.rounds};
  const auto count = static_cast<std::int64_t>(result.plans.size());
  for (std::int64_t done = 0; done < count * options.rounds; ++done) {
    const auto number = static_cast<std::size_t>(done % count);
    VerifiedPlan& plan = result.plans[number];
    if (!plan.error.empty()) continue;
    if (options.should_stop && options.should_stop()) return result;
    if (options.progress) options.progress(number, done, count * options.rounds);
    std::optional<MeasuredRun> measured = run(number);
    if (!measured) return result;
    add_run(plan, std::move(*measured));
  }
  result.finished = true;
  return result;
}

}  // namespace trestle::plan
