#include "trestle/train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <ostream>
#include <string_view>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/train/progress_json.h"

namespace trestle::train {

namespace {

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

// "0.412", and "3.2e-05" where three digits would show nothing.
std::string number(double value) {
  if (value == 0 || std::abs(value) >= 0.01) return fixed(value, 3);
  std::ostringstream out;
  out << std::setprecision(3) << value;
  return out.str();
}

// Nothing where nothing was timed: the first step, an epoch whose steps came before a stop.
std::string rate(double examples_per_second) {
  return examples_per_second > 0 ? "  " + fixed(examples_per_second, 1) + " images/s" : "";
}

// A bound, but where stages share a device: what they hold together depends on their timing. From
// small samples it is an estimate.
std::string memory_line(const RunPlan& plan, const RunPlan::Stage& stage) {
  if (stage.predicted_peak <= 0) return "";
  const bool shared =
      std::count_if(plan.stages.begin(), plan.stages.end(),
                    [&](const RunPlan::Stage& other) { return other.device == stage.device; }) > 1;
  std::string line = shared || plan.from_samples ? "   peak about " : "   peak at most ";
  line += format_bytes(stage.predicted_peak);
  if (stage.budget > 0) line += " of " + format_bytes(stage.budget);
  if (stage.budget > 0 && stage.predicted_peak > stage.budget) line += ": may not fit";
  return line;
}

// "24 steps of 16", "12 steps of 2 x 16"
std::string steps_of(const RunPlan& plan) {
  const std::int64_t steps = (plan.steps_per_epoch + plan.accumulate - 1) / plan.accumulate;
  const std::string batches = plan.accumulate > 1 ? text(plan.accumulate, " x ") : "";
  return text(format_count(steps), " steps of ", batches, plan.batch);
}

class Lines : public Progress {
 public:
  Lines(Colours colours, std::ostream& out) : out_(out), colours_(colours) {}

  void note(const std::string& line) override { out_ << line << std::endl; }

  void plan(const RunPlan& plan) override {
    out_ << paint("1", versions()) << " · " << plan.devices << "\n";
    label("model") << plan.model << " · " << plan.layers << " layers · "
                   << format_count(plan.parameters) << " parameters · "
                   << (plan.channels_last ? "channels_last · " : "") << "cut ["
                   << join(plan.balance, ", ") << "] (balance: " << plan.balance_from << ")\n";
    std::size_t widest = 0;
    for (const auto& stage : plan.stages) widest = std::max(widest, stage.device.size());
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const auto& stage = plan.stages[i];
      label(text("stage ", i)) << stage.device << std::string(widest - stage.device.size(), ' ')
                               << std::setw(5) << stage.layers << " layers"
                               << memory_line(plan, stage) << "\n";
    }
    if (!plan.suggestion.empty()) label("") << plan.suggestion << "\n";
    label("schedule") << plan.schedule << " · " << plan.micro_batches
                      << " micro-batches · recompute " << plan.recompute;
    if (!plan.core_lending.empty()) out_ << " · " << plan.core_lending;
    if (plan.precision != "fp32") out_ << " · " << plan.precision;
    if (plan.predicted_seconds > 0)
      out_ << " · predicted " << format_duration(plan.predicted_seconds) << " a step, "
           << fixed(100 * plan.predicted_idle, 0) << " % idle"
           << (plan.from_samples ? " (from small samples)" : "");
    out_ << "\n";
    if (!plan.data_missing.empty()) {
      label("data") << "not there yet: " << plan.data_missing << std::endl;
      return;
    }
    label("data");
    if (!plan.synthetic_data.empty()) out_ << "synthetic (" << plan.synthetic_data << ") · ";
    out_ << format_count(plan.training_examples) << " to train on in " << steps_of(plan) << ", "
         << format_count(plan.validation_examples) << " to validate" << std::endl;
  }

  void step(const StepReport&) override {}

  void epoch(const EpochReport& report) override {
    out_ << paint("1", text("epoch ", report.epoch, "/", report.epochs)) << " " << bar(1, 1) << " "
         << report.steps << "/" << report.steps << "  loss " << number(report.training_loss);
    if (report.validation_loss) out_ << "  validation loss " << number(*report.validation_loss);
    if (report.metric)
      out_ << "  "
           << paint(report.best ? "1;32" : "0",
                    text(report.metric_name, " ", number(*report.metric)));
    out_ << rate(report.examples_per_second) << "\n";
    if (!report.picture.empty()) out_ << "          picture " << report.picture.string() << "\n";
    out_.flush();
  }

  void done(const TrainResult& result) override {
    label(result.finished ? "done" : "stopped")
        << result.epochs << (result.epochs == 1 ? " epoch, " : " epochs, ")
        << format_count(result.steps) << " steps";
    if (result.seconds > 0) out_ << ", " << format_duration(result.seconds);
    if (result.best_metric)
      out_ << " · best " << result.metric_name << " " << number(*result.best_metric) << " (epoch "
           << result.best_epoch << ")";
    if (result.step_seconds > 0) {
      out_ << " · " << format_duration(result.step_seconds) << " a step";
      if (result.predicted_seconds > 0)
        out_ << " (predicted " << format_duration(result.predicted_seconds) << ")";
      out_ << " + " << format_duration(result.optimizer_seconds) << " optimizer";
    }
    out_ << "\n";
    const std::string folder = result.run_folder.string();
    std::vector<std::string> peaks;
    for (const DevicePeak& peak : result.peaks)
      peaks.push_back(text(peak.device, " ", format_bytes(peak.measured)));
    if (!peaks.empty()) label("") << "peaks " << join(peaks, ", ") << "\n";
    if (result.best_epoch > 0) label("") << "weights " << folder << "/best.safetensors\n";
    if (result.steps > 0)
      label("") << "look: trestle view " << folder << "      continue: trestle train --resume "
                << folder << (result.to_go_on.empty() ? "" : " ") << result.to_go_on << "\n";
    out_.flush();
  }

 protected:
  std::ostream& label(const std::string& word) {
    return out_ << paint("2", word) << std::string(word.size() < 10 ? 10 - word.size() : 1, ' ');
  }

  std::string paint(const char* code, const std::string& words) const {
    if (colours_ == Colours::Off || words.empty()) return words;
    return text("\x1b[", code, "m", words, "\x1b[0m");
  }

  std::string bar(std::int64_t step, std::int64_t steps) const {
    constexpr std::int64_t width = 20;
    const std::int64_t full = steps > 0 ? step * width / steps : width;
    std::string done, rest;
    for (std::int64_t i = 0; i < width; ++i) (i < full ? done : rest) += i < full ? "━" : "─";
    return paint("36", done) + paint("2", rest);
  }

  std::ostream& out_;

 private:
  Colours colours_;
};

class Terminal : public Lines {
 public:
  using Lines::Lines;

  void note(const std::string& line) override { out_ << erase << line << std::endl; }

  void step(const StepReport& report) override {
    out_ << erase << "epoch " << report.epoch << "/" << report.epochs << " "
         << bar(report.step, report.steps) << " " << report.step << "/" << report.steps << "  loss "
         << number(report.loss) << rate(report.examples_per_second) << std::flush;
  }

  void epoch(const EpochReport& report) override {
    out_ << erase;
    Lines::epoch(report);
  }

  void done(const TrainResult& result) override {
    out_ << erase;
    Lines::done(result);
  }

 private:
  static constexpr std::string_view erase = "\r\x1b[2K";
};

class Silent : public Progress {
 public:
  void note(const std::string&) override {}
  void plan(const RunPlan&) override {}
  void step(const StepReport&) override {}
  void epoch(const EpochReport&) override {}
  void done(const TrainResult&) override {}
};

}  // namespace

std::unique_ptr<Progress> make_progress(ProgressStyle style, Colours colours, std::ostream& out) {
  switch (style) {
    case ProgressStyle::Terminal:
      return std::make_unique<Terminal>(colours, out);
    case ProgressStyle::Lines:
      return std::make_unique<Lines>(colours, out);
    case ProgressStyle::Json:
      return make_json_progress(out);
    case ProgressStyle::Silent:
      break;
  }
  return std::make_unique<Silent>();
}

std::pair<ProgressStyle, Colours> progress_style_of(int descriptor) {
  if (isatty(descriptor) == 0) return {ProgressStyle::Lines, Colours::Off};
  const char* terminal = std::getenv("TERM");
  if (terminal == nullptr || std::string_view(terminal) == "dumb")
    return {ProgressStyle::Lines, Colours::Off};
  const char* no_colour = std::getenv("NO_COLOR");
  const bool plain = no_colour != nullptr && *no_colour != '\0';
  return {ProgressStyle::Terminal, plain ? Colours::Off : Colours::On};
}

}  // namespace trestle::train
