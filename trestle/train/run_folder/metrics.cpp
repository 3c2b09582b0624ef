#include "trestle/train/run_folder/metrics.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/train/run_folder/json_number.h"
#include "trestle/view/curve.h"

namespace trestle::train {

namespace {

using nlohmann::ordered_json;

std::optional<ordered_json> parse_line(const std::string& line) {
  ordered_json parsed = ordered_json::parse(line, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  return parsed;
}

bool keep(const ordered_json& line, std::int64_t step, std::int64_t epochs) {
  auto integer = [&](const char* key) {
    return line.contains(key) && line[key].is_number_integer()
               ? line[key].get<std::int64_t>()
               : std::numeric_limits<std::int64_t>::max();
  };
  return line.contains("training_loss") ? integer("epoch") <= epochs : integer("step") <= step;
}

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path) : path_(std::move(path)) {
  write_file(path_, "");
}

MetricsFile::MetricsFile(std::filesystem::path path, std::int64_t step, std::int64_t epochs)
    : path_(std::move(path)) {
  std::string kept;
  if (std::filesystem::exists(path_)) {
    for (const std::string& line : split(read_file(path_), '\n')) {
      const auto parsed = parse_line(line);
      if (parsed && keep(*parsed, step, epochs)) kept += line + "\n";
    }
  }
  write_file(path_, kept);
}

void MetricsFile::append(const std::string& line) {
  std::ofstream out(path_, std::ios::binary | std::ios::app);
  out << line << "\n" << std::flush;
  if (!out)
    throw FileError(text("cannot be written: ", std::strerror(errno)), {.file = path_.string()});
}

void MetricsFile::add_step(const StepMetrics& step) {
  ordered_json out = {{"step", step.step},
                      {"epoch", step.epoch},
                      {"loss", json_number(step.loss)},
                      {"learning_rate", step.learning_rate},
                      {"gradient_norm", json_number(step.gradient_norm)}};
  for (const auto& [device, bytes] : step.peaks) out["peak_bytes"][device] = bytes;
  append(out.dump());
}

void MetricsFile::add_epoch(const EpochReport& report) {
  ordered_json out = {{"epoch", report.epoch},
                      {"step", report.step},
                      {"training_loss", json_number(report.training_loss)}};
  if (report.validation_loss) out["validation_loss"] = json_number(*report.validation_loss);
  if (report.metric) out[report.metric_name] = json_number(*report.metric);
  out["learning_rate"] = report.learning_rate;
  out["examples_per_second"] = report.examples_per_second;
  const TokenRate rate = token_rate(report);
  if (rate.tokens_per_second > 0) out["tokens_per_second"] = rate.tokens_per_second;
  if (rate.flops() > 0) out["model_flops_per_second"] = rate.flops();
  if (const auto share = rate.utilisation()) out["mfu"] = *share;
  out["seconds"] = report.seconds;
  if (report.synthetic_data) out["synthetic_data"] = true;
  append(out.dump());
}

std::vector<EpochReport> read_epochs(const std::filesystem::path& path) {
  std::vector<EpochReport> epochs;
  for (const std::string& line : split(read_file(path), '\n')) {
    const auto parsed = parse_line(line);
    if (!parsed || !parsed->contains("training_loss")) continue;
    auto value = [&](const char* key) {
      const auto found = parsed->find(key);
      return found != parsed->end() && found->is_number() ? found->get<double>() : std::nan("");
    };
    EpochReport report;
    report.epoch = static_cast<std::int64_t>(value("epoch"));
    report.step = static_cast<std::int64_t>(value("step"));
    report.training_loss = value("training_loss");
    if (parsed->contains("validation_loss")) report.validation_loss = value("validation_loss");
    // The name of the metric follows the validation loss.
    auto metric = parsed->find("validation_loss");
    if (metric != parsed->end() && ++metric != parsed->end() && metric.key() != "learning_rate") {
      report.metric_name = metric.key();
      report.metric = value(metric.key().c_str());
    }
    report.learning_rate = value("learning_rate");
    report.examples_per_second = value("examples_per_second");
    report.seconds = value("seconds");
    report.synthetic_data = parsed->contains("synthetic_data");
    epochs.push_back(report);
  }
  return epochs;
}

std::string draw_curves(const std::vector<EpochReport>& epochs, const std::string& title) {
  view::Series training, validation, metric;
  training.chart = validation.chart = "loss";
  training.name = "training";
  validation.name = metric.name = "validation";
  metric.mark = view::Mark::Highest;
  bool synthetic = false;
  for (const EpochReport& epoch : epochs) {
    synthetic = synthetic || epoch.synthetic_data;
    const double x = static_cast<double>(epoch.epoch);
    training.x.push_back(x);
    training.y.push_back(epoch.training_loss);
    validation.x.push_back(x);
    validation.y.push_back(epoch.validation_loss.value_or(std::nan("")));
    metric.x.push_back(x);
    metric.y.push_back(epoch.metric.value_or(std::nan("")));
    if (epoch.metric) metric.chart = epoch.metric_name;
  }
  std::vector<view::Series> series = {training};
  if (!metric.chart.empty()) series.insert(series.end(), {validation, metric});
  return view::to_svg_curves(series, {.title = synthetic ? title + ", synthetic data" : title});
}

}  // namespace trestle::train
