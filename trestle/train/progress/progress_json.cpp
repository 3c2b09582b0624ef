#include "trestle/train/progress/progress_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

namespace trestle::train {

namespace {

using nlohmann::ordered_json;

void add_rate(const TokenRate& rate, ordered_json& out) {
  if (rate.tokens_per_second > 0) out["tokens_per_second"] = rate.tokens_per_second;
  if (rate.flops() > 0) out["model_flops_per_second"] = rate.flops();
  if (const auto share = rate.utilisation()) out["mfu"] = *share;
}

class Json : public Progress {
 public:
  explicit Json(std::ostream& out) : out_(out) {}

  void note(const std::string& line) override { write({{"event", "note"}, {"text", line}}); }

  void slow_precision(const SlowPrecisionReport& report) override {
    write({{"event", "slow_precision"},
           {"precision", report.precision},
           {"weight", report.weight},
           {"seconds", report.seconds},
           {"fp32_seconds", report.fp32_seconds},
           {"better", report.better},
           {"text", report.words}});
  }

  void failed(const std::string& message) override {
    write({{"event", "failed"}, {"reason", message}});
  }

  void plan(const RunPlan& plan) override {
    ordered_json stages = ordered_json::array();
    for (const auto& stage : plan.stages)
      stages.push_back({{"device", stage.device},
                        {"layers", stage.layers},
                        {"predicted_peak_bytes", stage.predicted_peak},
                        {"budget_bytes", stage.budget}});
    write({{"event", "plan"},
           {"run", plan.folder.empty() ? plan.name : plan.folder.filename().string()},
           {"run_folder", plan.folder.string()},
           {"versions", versions()},
           {"devices", plan.devices},
           {"model", plan.model},
           {"layers", plan.layers},
           {"parameters", plan.parameters},
           {"frozen_parameters", plan.frozen_parameters},
           {"balance", plan.balance},
           {"balance_from", plan.balance_from},
           {"stages", stages},
           {"suggestion", plan.suggestion},
           {"schedule", plan.schedule},
           {"micro_batches", plan.micro_batches},
           {"recompute", plan.recompute},
           {"core_lending", plan.core_lending},
           {"memory_format", plan.channels_last ? "channels_last" : "contiguous"},
           {"from_samples", plan.from_samples},
           {"timed_on_cpu", plan.timed_on_cpu},
           {"predicted_step_seconds", plan.predicted_seconds},
           {"predicted_communication_seconds", plan.predicted_communication_seconds},
           {"predicted_bytes_sent", plan.bytes_sent},
           {"network", plan.network},
           {"tensor_messages", plan.tensor.messages},
           {"tensor_bytes_sent", plan.tensor.bytes_sent},
           {"predicted_exposed_tensor_seconds", plan.tensor.exposed_seconds},
           {"predicted_hidden_tensor_seconds", plan.tensor.hidden_seconds},
           {"predicted_optimizer_seconds", plan.predicted_optimizer_seconds},
           {"predicted_idle", plan.predicted_idle},
           {"data_missing", plan.data_missing},
           {"synthetic_data", plan.synthetic_data},
           {"training_examples", plan.training_examples},
           {"validation_examples", plan.validation_examples},
           {"precision", plan.precision},
           {"batch", plan.batch},
           {"accumulate", plan.accumulate},
           {"steps_per_epoch", plan.steps_per_epoch},
           {"epochs", plan.epochs},
           {"total_steps", plan.steps()},
           {"steps_done", plan.steps_done},
           {"metric", plan.metric}});
  }

  void step(const StepReport& report) override {
    ordered_json out = of_step("step", report);
    out["learning_rate"] = report.learning_rate;
    add_rate(token_rate(report), out);
    write(out);
  }

  void validation_step(const StepReport& report) override { write(of_step("validation", report)); }

  void epoch(const EpochReport& report) override {
    ordered_json out = {{"event", "epoch"},
                        {"epoch", report.epoch},
                        {"epochs", report.epochs},
                        {"step", report.step},
                        {"training_loss", report.training_loss}};
    if (report.validation_loss) out["validation_loss"] = *report.validation_loss;
    if (report.metric) out[report.metric_name] = *report.metric;
    if (report.metric && report.metric_name == "log_probability")
      out["perplexity"] = std::exp(-*report.metric);
    add_rate(token_rate(report), out);
    if (!report.sample.empty()) out["sample"] = report.sample;
    out["learning_rate"] = report.learning_rate;
    out["examples_per_second"] = report.examples_per_second;
    out["seconds"] = report.seconds;
    out["best"] = report.best;
    if (!report.picture.empty()) out["picture"] = report.picture.string();
    write(out);
  }

  void done(const TrainResult& result) override {
    ordered_json peaks = ordered_json::array();
    for (const DevicePeak& peak : result.peaks)
      peaks.push_back({{"device", peak.device},
                       {"peak_bytes", peak.measured},
                       {"predicted_peak_bytes", peak.predicted}});
    write({{"event", "done"},
           {"finished", result.finished},
           {"run_folder", result.run_folder.string()},
           {"epochs", result.epochs},
           {"steps", result.steps},
           {"seconds", result.seconds},
           {"metric", result.metric_name},
           {"best", result.best_metric ? ordered_json(*result.best_metric) : nullptr},
           {"best_epoch", result.best_epoch},
           {"step_seconds", result.step_seconds},
           {"optimizer_seconds", result.optimizer_seconds},
           {"predicted_step_seconds", result.predicted_seconds},
           {"predicted_optimizer_seconds", result.predicted_optimizer_seconds},
           {"peaks", peaks}});
  }

 private:
  static ordered_json of_step(const char* event, const StepReport& report) {
    ordered_json out = {{"event", event},      {"epoch", report.epoch},
                        {"step", report.step}, {"steps", report.steps},
                        {"loss", report.loss}, {"examples_per_second", report.examples_per_second}};
    if (report.seconds_left) out["seconds_left"] = *report.seconds_left;
    if (report.run_seconds_left) out["run_seconds_left"] = *report.run_seconds_left;
    return out;
  }

  void write(const ordered_json& object) {
    out_ << object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
  }

  std::ostream& out_;
};

}  // namespace

std::unique_ptr<Progress> make_json_progress(std::ostream& out) {
  return std::make_unique<Json>(out);
}

}  // namespace trestle::train
