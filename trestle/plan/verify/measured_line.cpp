#include "trestle/plan/verify/measured_line.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/median.h"
#include "trestle/base/text.h"

namespace trestle::plan {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_line(const std::string& what) {
  throw FormatError(text("not the output of trestle train --measure: ", what));
}

double number_from(const Json& value, double most, const char* name) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= 0 && number <= most)) refuse_line(text("'", name, "' is ", value.dump()));
  return number;
}

const Json& member_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) refuse_line(text("no '", name, "'"));
  return *found;
}

// The object of a line, which may begin with a launcher's prefix.
Json object_in(std::string_view line) {
  line.remove_prefix(std::min(line.find('{'), line.size()));
  return Json::parse(line, nullptr, /*allow_exceptions=*/false);
}

Json measured_object(std::string_view output) {
  Json measured;
  while (!output.empty()) {
    const std::size_t end = std::min(output.find('\n'), output.size());
    Json json = object_in(output.substr(0, end));
    if (json.is_object() && json.value("event", Json()) == "measured") {
      if (!measured.is_null())
        refuse_line(
            "several lines have \"event\": \"measured\", so the processes were not the ranks of "
            "one run");
      measured = std::move(json);
    }
    output.remove_prefix(std::min(end + 1, output.size()));
  }
  if (measured.is_null()) refuse_line("no line has \"event\": \"measured\"");
  return measured;
}

}  // namespace

MeasuredRun measured_run_of(std::string_view output) {
  constexpr double longest = 1e9;  // seconds
  constexpr double most_bytes = 1e18;
  const Json json = measured_object(output);
  std::vector<double> seconds;
  const Json& steps = member_of(json, "seconds");
  if (!steps.is_array() || steps.empty()) refuse_line("'seconds' is no list of steps");
  for (const Json& step : steps) seconds.push_back(number_from(step, longest, "seconds"));
  MeasuredRun run{.seconds = median(seconds) + number_from(member_of(json, "optimizer_seconds"),
                                                           longest, "optimizer_seconds")};
  const Json& peaks = member_of(json, "peaks");
  if (!peaks.is_array()) refuse_line("'peaks' is no list");
  for (const Json& peak : peaks) {
    if (!peak.is_object()) refuse_line("a peak is no object");
    const Json& device = member_of(peak, "device");
    if (!device.is_string()) refuse_line("'device' is no text");
    run.peaks.push_back(
        {.device = device.get<std::string>(),
         .bytes = number_from(member_of(peak, "measured_bytes"), most_bytes, "measured_bytes")});
  }
  return run;
}

}  // namespace trestle::plan
