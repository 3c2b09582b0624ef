#include "trestle/train/progress/progress_words.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "trestle/base/counted.h"
#include "trestle/base/shell_word.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/train/progress/bar.h"

namespace trestle::train {

namespace {

constexpr std::size_t label_width = 10;

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

// "0.412", or "3.2e-05" where three digits would be zero.
std::string number_in_words(double value) {
  if (value == 0 || std::abs(value) >= 0.01) return fixed(value, 3);
  std::ostringstream out;
  out << std::setprecision(3) << value;
  return out.str();
}

std::string spaces(std::size_t count) { return std::string(count, ' '); }

// Empty without a measurement: for the first step, and for an epoch whose steps came before a stop.
template <class Report>
std::string rate(const Report& report) {
  const double examples = report.examples_per_second;
  if (examples <= 0) return "";
  if (report.tokens_per_example == 0) return "  " + fixed(examples, 1) + " images/s";
  return "  " + fixed(examples * static_cast<double>(report.tokens_per_example), 0) + " tokens/s";
}

// ", 85.3 GFLOP/s, MFU 41.2 %"; empty for other models than language models.
std::string flops_words(const TokenRate& rate) {
  if (rate.flops() <= 0) return "";
  const bool tera = rate.flops() >= 1e12;
  std::string words =
      text(", ", fixed(rate.flops() / (tera ? 1e12 : 1e9), 2), tera ? " TFLOP/s" : " GFLOP/s");
  if (const auto share = rate.utilisation()) words += text(", MFU ", fixed(100 * *share, 1), " %");
  return words;
}

// "voxel_dice 0.91"; of language models the perplexity.
std::string metric_words(const std::string& name, double value) {
  if (name == "log_probability") return "perplexity " + number_in_words(std::exp(-value));
  return text(name, " ", number_in_words(value));
}

// The lines of a text, indented, without more than a few of them.
void add_sample(const std::string& sample, std::vector<std::string>& lines) {
  constexpr std::size_t most_lines = 12;
  const std::vector<std::string> all = split(sample, '\n');
  for (std::size_t i = 0; i < std::min(all.size(), most_lines); ++i)
    lines.push_back(spaces(label_width) + "| " + all[i]);
  if (all.size() > most_lines) lines.push_back(spaces(label_width) + "| ...");
}

// The beginning of a line: "model     ".
std::string label(const std::string& word, Colours colours) {
  const std::size_t gap = word.size() < label_width ? label_width - word.size() : 1;
  return painted(colours, "2", word) + spaces(gap);
}

// The predicted peak is an upper bound, except for stages that share a device: their sum depends on
// timing. From small samples it is an estimate, and so are the buffers of reductions.
std::string memory_words(const RunPlan& plan, const RunPlan::Stage& stage) {
  if (stage.predicted_peak <= 0) return "";
  const bool shared =
      std::count_if(plan.stages.begin(), plan.stages.end(),
                    [&](const RunPlan::Stage& other) { return other.device == stage.device; }) > 1;
  const bool bound = !shared && !plan.from_samples && plan.parts == 1;
  const std::string peak = format_bytes(stage.predicted_peak);
  const std::string most = bound ? "at most " : "about ";
  if (stage.budget > 0 && stage.predicted_peak > stage.budget)
    return text("   may not fit: needs ", most, peak, ", has ", format_bytes(stage.budget));
  return text("   peak ", most, peak, stage.budget > 0 ? " of " + format_bytes(stage.budget) : "");
}

// "unet_quick · 6 epochs, 144 steps · writes into runs/unet_quick"
std::string run_words(const RunPlan& plan) {
  const bool on_paper = plan.folder.empty();
  std::string line = on_paper ? plan.name : plan.folder.filename().string();
  line += " · " + counted(plan.epochs, "epoch");
  if (plan.steps() > 0) line += ", " + counted(plan.steps(), "step");
  if (plan.steps_done > 0) line += text(" · resumes after ", counted(plan.steps_done, "step"));
  if (!on_paper) line += " · writes into " + plan.folder.string();
  return line;
}

// "1,942,594 parameters", "2,442,240 trained and 134,515,008 frozen parameters"
std::string parameter_words(const RunPlan& plan) {
  if (plan.frozen_parameters == 0) return counted(plan.parameters, "parameter");
  return text(format_count(plan.parameters - plan.frozen_parameters), " trained and ",
              counted(plan.frozen_parameters, "frozen parameter"));
}

std::string model_words(const RunPlan& plan) {
  return text(plan.model, " · ", counted(plan.layers, "layer"), " · ", parameter_words(plan), " · ",
              plan.channels_last ? "channels_last · " : "", "cut [", join(plan.balance, ", "),
              "] (balance: ", plan.balance_from, ")");
}

void add_stages(const RunPlan& plan, Colours colours, std::vector<std::string>& lines) {
  std::size_t widest = 0;
  for (const auto& stage : plan.stages) widest = std::max(widest, stage.device.size());
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const auto& stage = plan.stages[i];
    const std::string memory = memory_words(plan, stage);
    std::ostringstream line;
    line << label(text("stage ", i), colours) << stage.device
         << spaces(widest - stage.device.size()) << std::setw(5) << stage.layers
         << (stage.layers != 1 ? " layers"
             : memory.empty()  ? " layer"
                               : " layer ")
         << memory;
    lines.push_back(line.str());
  }
}

// "tensor ranks: each sends 6.0 MiB in 40 messages per batch, 12 ms exposed, 4 ms hidden"
std::string tensor_words(const TensorTraffic& tensor) {
  const bool is_timed = tensor.exposed_seconds + tensor.hidden_seconds > 0;
  return text("tensor ranks: each sends ", format_bytes(std::llround(tensor.bytes_sent)), " in ",
              counted(tensor.messages, "message"), " per batch, ",
              is_timed ? text(format_duration(tensor.exposed_seconds), " exposed, ",
                              format_duration(tensor.hidden_seconds), " hidden")
                       : "whose time the prediction leaves out");
}

std::string schedule_words(const RunPlan& plan) {
  std::string line =
      text(plan.schedule, " · ", counted(plan.micro_batches, "micro-batch", "micro-batches"));
  if (plan.requested_micro_batches > plan.micro_batches)
    line += text(" of one sample, not ", plan.requested_micro_batches);
  line += " · recompute " + plan.recompute;
  if (!plan.core_lending.empty()) line += " · " + plan.core_lending;
  if (plan.precision != "fp32") line += " · " + plan.precision;
  if (plan.predicted_seconds > 0)
    line +=
        text(" · predicted ", format_duration(plan.predicted_seconds), " per step, ",
             fixed(100 * plan.predicted_idle, 0), " % idle",
             plan.from_samples ? " (from small samples)" : "",
             plan.timed_on_cpu ? " on this machine's CPU, not on the GPUs, which are not here" : "",
             plan.parts == 1 ? ""
             : plan.predicted_communication_seconds > 0
                 ? text(", ", format_duration(plan.predicted_communication_seconds),
                        " of it data-parallel communication")
                 : ", excluding data-parallel communication");
  if (plan.parts > 1 && plan.bytes_sent > 0)
    line += text(" (each rank sends ", format_bytes(std::llround(plan.bytes_sent)), " per batch)");
  if (plan.tensor.messages > 0) line += " · " + tensor_words(plan.tensor);
  if (plan.predicted_optimizer_seconds > 0)
    line += text(" · optimizer ", format_duration(plan.predicted_optimizer_seconds));
  return line;
}

// "synthetic (data/cars) · 384 to train on in 24 steps of 16, 96 to validate"
std::string data_words(const RunPlan& plan) {
  if (!plan.data_missing.empty()) return "not there yet: " + plan.data_missing;
  return text(plan.synthetic_data.empty() ? "" : text("synthetic (", plan.synthetic_data, ") · "),
              format_count(plan.training_examples), " to train on in ",
              counted(plan.optimizer_steps_per_epoch(), "step"), " of ",
              plan.accumulate > 1 ? text(plan.accumulate, " x ") : "", plan.batch, ", ",
              format_count(plan.validation_examples), " to validate");
}

// "5 s left", ", run 1 min 2 s"
std::vector<std::string> left_words(const StepReport& report) {
  std::vector<std::string> words;
  if (report.seconds_left)
    words.push_back(text("  ", format_time_left(*report.seconds_left), " left"));
  if (report.run_seconds_left)
    words.push_back(text(words.empty() ? "  run " : ", run ",
                         format_time_left(*report.run_seconds_left), words.empty() ? " left" : ""));
  return words;
}

std::string epoch_of(const StepReport& report) {
  return text("epoch ", report.epoch, "/", report.epochs);
}

}  // namespace

std::vector<std::string> header_lines(const RunPlan& plan, Colours colours) {
  std::vector<std::string> lines = {painted(colours, "1", versions()) + " · " + plan.devices,
                                    label("run", colours) + run_words(plan),
                                    label("model", colours) + model_words(plan)};
  add_stages(plan, colours, lines);
  if (!plan.suggestion.empty()) lines.push_back(label("", colours) + plan.suggestion);
  lines.push_back(label("schedule", colours) + schedule_words(plan));
  if (!plan.network.empty()) lines.push_back(label("network", colours) + plan.network);
  lines.push_back(label("data", colours) + data_words(plan));
  return lines;
}

std::vector<std::string> epoch_lines(const EpochReport& report, Colours colours, int columns) {
  const BarLine bar{
      .label = painted(colours, "1", text("epoch ", report.epoch, "/", report.epochs)),
      .done = report.steps,
      .all = report.steps};
  std::string line =
      draw(bar, columns, colours) + "  loss " + number_in_words(report.training_loss);
  if (report.validation_loss)
    line += "  validation loss " + number_in_words(*report.validation_loss);
  if (report.metric)
    line += "  " + painted(colours, report.best ? "1;32" : "0",
                           metric_words(report.metric_name, *report.metric));
  line += rate(report) + flops_words(token_rate(report));
  if (report.seconds > 0) line += "  in " + format_duration(report.seconds);
  std::vector<std::string> lines = {line};
  if (!report.picture.empty())
    lines.push_back(spaces(label_width) + "picture " + report.picture.string());
  if (!report.sample.empty()) add_sample(report.sample, lines);
  return lines;
}

std::vector<std::string> done_lines(const TrainResult& result, Colours colours) {
  std::string line = label(result.finished ? "done" : "stopped", colours) +
                     text(counted(result.epochs, "epoch"), ", ", counted(result.steps, "step"));
  if (result.seconds > 0) line += ", " + format_duration(result.seconds);
  if (result.best_metric)
    line += text(" · best ", metric_words(result.metric_name, *result.best_metric), " (epoch ",
                 result.best_epoch, ")");
  if (result.step_seconds > 0) {
    line += text(" · ", format_duration(result.step_seconds), " per step");
    if (result.predicted_seconds > 0)
      line += text(" (predicted ", format_duration(result.predicted_seconds), ")");
    line += text(" · optimizer ", format_duration(result.optimizer_seconds));
    if (result.predicted_optimizer_seconds > 0)
      line += text(" (predicted ", format_duration(result.predicted_optimizer_seconds), ")");
  }
  std::vector<std::string> lines = {line};
  const std::string folder = result.run_folder.string();
  std::vector<std::string> peaks;
  for (const DevicePeak& peak : result.peaks)
    peaks.push_back(text(peak.device, " ", format_bytes(peak.measured)));
  const std::string indent = spaces(label_width);
  if (!peaks.empty()) lines.push_back(indent + "peaks " + join(peaks, ", "));
  if (result.best_epoch > 0) lines.push_back(indent + "weights " + folder + "/best.safetensors");
  if (result.steps > 0)
    lines.push_back(text(indent, "look: trestle view ", shell_word(folder),
                         "      continue: trestle train --resume ", shell_word(folder),
                         result.resume_flags.empty() ? "" : " ", result.resume_flags));
  return lines;
}

std::string step_line(const StepReport& report, StepOf of) {
  const bool training = of == StepOf::Training;
  std::string line = text(epoch_of(report), training ? "  " : "  validation ", report.step, "/",
                          report.steps, "  loss ", number_in_words(report.loss));
  if (training) line += text("  learning rate ", number_in_words(report.learning_rate));
  return line + rate(report) + join(left_words(report), "");
}

std::vector<std::string> step_words(const StepReport& report) {
  std::vector<std::string> words = left_words(report);
  words.insert(words.begin(), "  loss " + number_in_words(report.loss));
  words.push_back(rate(report));
  return words;
}

}  // namespace trestle::train
