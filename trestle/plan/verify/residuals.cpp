#include "trestle/plan/verify/residuals.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/search/plan_report.h"

namespace trestle::plan {

namespace {

using Json = nlohmann::ordered_json;

constexpr double covered = 0.9;
constexpr std::size_t least_for_bound = 9;  // ceil(0.9 (n + 1)) <= n
constexpr double longest_step = 1e9;        // seconds

std::string residual_text(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) throw FormatError(text("no text '", name, "'"));
  return found->get<std::string>();
}

double residual_number(const Json& json, const char* name, double least, double most) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number()) throw FormatError(text("no number '", name, "'"));
  const double value = found->get<double>();
  if (!(value >= least && value <= most))
    throw FormatError(text("'", name, "' is ", value, ", not from ", least, " to ", most));
  return value;
}

Residual residual_of(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw FormatError("no JSON object");
  constexpr double shortest = 1e-9;
  return {.model = residual_text(json, "model"),
          .strategy = residual_text(json, "strategy"),
          .machine = residual_text(json, "machine"),
          .version = residual_text(json, "version"),
          .predicted_seconds = residual_number(json, "predicted_seconds", shortest, longest_step),
          .measured_seconds = residual_number(json, "measured_seconds", shortest, longest_step),
          .spread = residual_number(json, "spread", 0, longest_step)};
}

// The errors are sorted.
double spread_of_errors(const std::vector<double>& errors) {
  const auto place =
      static_cast<std::size_t>(std::ceil(covered * static_cast<double>(errors.size() + 1) - 1e-9));
  return errors[std::min(place, errors.size()) - 1];
}

std::vector<double> sorted_errors(const std::vector<Residual>& residuals) {
  std::vector<double> errors;
  for (const Residual& residual : residuals) errors.push_back(residual.error());
  std::sort(errors.begin(), errors.end());
  return errors;
}

}  // namespace

double Residual::error() const { return std::abs(predicted_seconds / measured_seconds - 1); }

std::vector<Residual> residuals_of(const Verification& verification, const Residual& here) {
  std::vector<Residual> residuals;
  for (const VerifiedPlan& plan : verification.plans) {
    if (!plan.measured()) continue;
    Residual residual = here;
    residual.strategy = to_string(plan.strategy);
    residual.predicted_seconds = plan.predicted_seconds;
    residual.measured_seconds = plan.seconds();
    residual.spread = plan.spread();
    residuals.push_back(std::move(residual));
  }
  return residuals;
}

std::string to_json_lines(const std::vector<Residual>& residuals) {
  std::string lines;
  for (const Residual& residual : residuals)
    lines += Json{{"model", residual.model},
                  {"strategy", residual.strategy},
                  {"machine", residual.machine},
                  {"version", residual.version},
                  {"predicted_seconds", residual.predicted_seconds},
                  {"measured_seconds", residual.measured_seconds},
                  {"spread", residual.spread}}
                 .dump(-1, ' ', false, Json::error_handler_t::replace) +
             "\n";
  return lines;
}

std::vector<Residual> parse_residuals(std::string_view lines, const std::string& file) {
  std::vector<Residual> residuals;
  for (int number = 1; !lines.empty(); ++number) {
    const std::size_t end = lines.find('\n');
    try {
      if (end == std::string_view::npos) throw FormatError("the line has no end");
      residuals.push_back(residual_of(lines.substr(0, end)));
    } catch (const FormatError& error) {
      throw UsageError(text("not a measured step: ", error.what()),
                       {.file = text(file, ":", number), .hint = "Remove the line."});
    }
    lines.remove_prefix(end + 1);
  }
  return residuals;
}

void check_residuals(const std::vector<Residual>& residuals, const Residual& here,
                     const std::string& file) {
  for (const Residual& residual : residuals) {
    const auto refuse = [&](const char* of, const std::string& there, const std::string& own) {
      throw UsageError(text(file, ": has steps that were measured ", of, " '", there,
                            "', and this is '", own, "'"),
                       {.hint = "Measure them here: trestle plan RECIPE --verify 5 "
                                "--save-residuals with another file."});
    };
    if (residual.machine != here.machine) refuse("on", residual.machine, here.machine);
    if (residual.version != here.version) refuse("with", residual.version, here.version);
  }
}

int within_spread_of_others(const std::vector<Residual>& residuals) {
  const std::vector<double> errors = sorted_errors(residuals);
  int within = 0;
  for (std::size_t i = 0; errors.size() > 1 && i < errors.size(); ++i) {
    std::vector<double> other = errors;
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(i));
    within += errors[i] <= std::min(spread_of_errors(other), largest_spread) ? 1 : 0;
  }
  return within;
}

Figure spread_of(const std::vector<Residual>& residuals) {
  if (residuals.empty())
    throw UsageError(
        "no measured step gives a range",
        {.hint = "Measure some: trestle plan RECIPE --verify 5 --save-residuals FILE."});
  const double spread = spread_of_errors(sorted_errors(residuals));
  const std::string counted_steps = counted(static_cast<std::int64_t>(residuals.size()),
                                            "step that was measured", "steps that were measured");
  if (residuals.size() < least_for_bound)
    return {.value = spread,
            .origin = Origin::Assumed,
            .from = text("the largest error of ", counted_steps, " on this machine; ",
                         least_for_bound, " or more give a range that nine of ten lie in")};
  return {.value = spread,
          .origin = Origin::Measured,
          .from = text("nine of ten like the ", counted_steps, " on this machine; ",
                       within_spread_of_others(residuals),
                       " of them lie in the range that all other ones give")};
}

}  // namespace trestle::plan
