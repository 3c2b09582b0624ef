#include "trestle/train/progress/progress.h"

#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <ostream>
#include <string_view>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/train/progress/bar.h"
#include "trestle/train/progress/progress_json.h"
#include "trestle/train/progress/progress_words.h"

namespace trestle::train {

std::optional<double> TokenRate::utilisation() const {
  if (flops() <= 0 || peak_flops <= 0) return std::nullopt;
  return flops() / peak_flops;
}

template <class Report>
static TokenRate rate_of(const Report& report) {
  return {.tokens_per_second =
              report.examples_per_second * static_cast<double>(report.tokens_per_example),
          .flops_per_token = report.flops_per_token,
          .peak_flops = report.peak_flops};
}

TokenRate token_rate(const StepReport& report) { return rate_of(report); }
TokenRate token_rate(const EpochReport& report) { return rate_of(report); }

namespace {

class Lines : public Progress {
 public:
  Lines(Colours colours, std::ostream& out) : out_(out), colours_(colours) {}

  void note(const std::string& line) override { say(line); }

  void plan(const RunPlan& plan) override {
    log_every_ = plan.log_every;
    say_all(header_lines(plan, colours_));
  }

  void step(const StepReport& report) override { say_step(report, StepOf::Training); }
  void validation_step(const StepReport& report) override { say_step(report, StepOf::Validation); }
  void epoch(const EpochReport& report) override {
    say_all(epoch_lines(report, colours_, columns()));
  }
  void done(const TrainResult& result) override { say_all(done_lines(result, colours_)); }

 protected:
  // One write, so that lines of several writers into one file stay whole.
  virtual void say(const std::string& line) { out_ << line + "\n" << std::flush; }

  virtual int columns() const { return std::numeric_limits<int>::max(); }

  std::ostream& out_;
  Colours colours_;

 private:
  void say_all(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) say(line);
  }

  void say_step(const StepReport& report, StepOf of) {
    if (log_every_ > 0 && report.step % log_every_ == 0) say(step_line(report, of));
  }

  std::int64_t log_every_ = 0;
};

class Terminal : public Lines {
 public:
  Terminal(Colours colours, std::ostream& out, const Columns& columns)
      : Lines(colours, out), columns_(columns), bar_(out, colours, columns) {}

  void step(const StepReport& report) override { show(report, ""); }
  void validation_step(const StepReport& report) override { show(report, " validation"); }

  void synthesizing_data(std::int64_t done, std::int64_t all) override {
    bar_.count("synthesizing data", done, all);
  }

 private:
  void say(const std::string& line) override {
    constexpr int indent = 10;
    bar_.erase();
    std::vector<std::string> rows;
    for (const std::string& row : split(line, '\n')) rows.push_back(folded(row, columns(), indent));
    Lines::say(join(rows, "\n"));
  }

  int columns() const override { return columns_(); }

  void show(const StepReport& report, const char* what) {
    bar_.show({.label = text("epoch ", report.epoch, "/", report.epochs, what),
               .done = report.step,
               .all = report.steps,
               .words = step_words(report)});
  }

  Columns columns_;
  Bar bar_;
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

std::unique_ptr<Progress> make_progress(ProgressStyle style, Colours colours, std::ostream& out,
                                        std::function<int()> columns) {
  switch (style) {
    case ProgressStyle::Terminal:
      if (!columns) columns = columns_of_terminal(STDOUT_FILENO);
      return std::make_unique<Terminal>(colours, out, columns);
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
