#include "trestle/train/sweep/sweep_record.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"
#include "trestle/train/progress/run_plan.h"
#include "trestle/train/run_folder/environment.h"

namespace trestle::train {

namespace {

using nlohmann::json;

[[noreturn]] void wrong(const std::string& what) {
  throw FormatError("not a measurement: " + what);
}

double duration(const json& of, const char* name) {
  const auto found = of.find(name);
  if (found == of.end() || !found->is_number()) wrong(text("no number '", name, "'"));
  const double value = found->get<double>();
  if (!(value >= 0 && value < 1e9)) wrong(text("'", name, "' is ", value));
  return value;
}

std::string word(const json& of, const char* name) {
  const auto found = of.find(name);
  if (found == of.end() || !found->is_string()) wrong(text("no text '", name, "'"));
  return found->get<std::string>();
}

template <class T>
std::vector<T> list(const json& of, const char* name) {
  const auto found = of.find(name);
  if (found == of.end() || !found->is_array()) wrong(text("no list '", name, "'"));
  std::vector<T> items;
  for (const json& item : *found) {
    const bool fits = std::is_integral_v<T> ? item.is_number_integer() : item.is_number();
    if (!fits) wrong(text("'", name, "' has something else than numbers"));
    items.push_back(item.get<T>());
  }
  return items;
}

json to_json(const StepTimes& times) {
  json peaks = json::array();
  for (const DevicePeak& peak : times.peaks)
    peaks.push_back({{"device", peak.device},
                     {"measured_bytes", peak.measured},
                     {"predicted_bytes", peak.predicted}});
  return {{"seconds", times.seconds},
          {"optimizer_seconds", times.optimizer_seconds},
          {"predicted_seconds", times.predicted_seconds},
          {"predicted_idle", times.predicted_idle},
          {"micro_batches", times.micro_batches},
          {"schedule", times.schedule},
          {"balance", times.balance},
          {"devices", times.devices},
          {"peaks", peaks}};
}

StepTimes from_json(const json& from) {
  StepTimes times;
  times.seconds = list<double>(from, "seconds");
  if (times.seconds.empty()) wrong("no steps");
  for (const double seconds : times.seconds)
    if (!(seconds >= 0 && seconds < 1e9)) wrong(text("a step of ", seconds, " s"));
  times.optimizer_seconds = duration(from, "optimizer_seconds");
  times.predicted_seconds = duration(from, "predicted_seconds");
  times.predicted_idle = duration(from, "predicted_idle");
  times.micro_batches = static_cast<int>(duration(from, "micro_batches"));
  if (from.contains("schedule")) times.schedule = word(from, "schedule");  // older files have none
  times.balance = list<int>(from, "balance");
  times.devices = word(from, "devices");
  const auto peaks = from.find("peaks");
  if (peaks == from.end() || !peaks->is_array()) wrong("no list 'peaks'");
  for (const json& peak : *peaks) {
    if (!peak.is_object()) wrong("a peak that is no object");
    for (const char* name : {"measured_bytes", "predicted_bytes"})
      if (!peak.contains(name) || !peak[name].is_number_integer())
        wrong(text("a peak without '", name, "'"));
    times.peaks.push_back({.device = word(peak, "device"),
                           .measured = peak["measured_bytes"].get<Bytes>(),
                           .predicted = peak["predicted_bytes"].get<Bytes>()});
  }
  return times;
}

// Throws FormatError also for text that is not a JSON object.
json parse(const std::string& line) {
  json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) wrong("no JSON object");
  return parsed;
}

}  // namespace

std::string measurement_key(const recipe::Recipe& recipe, const MeasureOptions& options) {
  recipe::Recipe measured = recipe;
  measured.train.runs = "";  // where results lie does not change them
  const Environment here = environment();
  const std::uint64_t hash = fnv1a(text(to_toml(measured), options.warm_up, " ", options.steps,
                                        "\n", versions(), "\n", here.cpu, " ", here.cores));
  char words[17];
  std::snprintf(words, sizeof words, "%016llx", static_cast<unsigned long long>(hash));
  return words;
}

std::string to_json_line(const StepTimes& times) { return to_json(times).dump(); }

StepTimes times_from_json(const std::string& line) { return from_json(parse(line)); }

SweepRecord::SweepRecord(std::filesystem::path path) : path_(std::move(path)) {
  if (!std::filesystem::exists(path_)) return;
  const std::string file = read_file(path_);
  std::size_t begin = 0;
  for (int number = 1; begin < file.size(); ++number) {
    const std::size_t end = file.find('\n', begin);
    if (end == std::string::npos) break;  // cut short
    const std::string line = file.substr(begin, end - begin);
    begin = end + 1;
    try {
      const json parsed = parse(line);
      measurements_.push_back(
          {.key = word(parsed, "key"), .point = word(parsed, "point"), .times = from_json(parsed)});
    } catch (const FormatError& error) {
      throw FormatError(error.what(), {.file = text(path_.string(), ":", number),
                                       .hint = "Remove the line to have it measured again."});
    }
  }
  lines_ = file.substr(0, begin);
}

std::vector<StepTimes> SweepRecord::runs_of(const std::string& key) const {
  std::vector<StepTimes> runs;
  for (const Measurement& measurement : measurements_)
    if (measurement.key == key) runs.push_back(measurement.times);
  return runs;
}

void SweepRecord::add(const Measurement& measurement) {
  json line = to_json(measurement.times);
  line["key"] = measurement.key;
  line["point"] = measurement.point;
  lines_ += line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  write_file(path_, lines_);
  measurements_.push_back(measurement);
}

}  // namespace trestle::train
