#include "trestle/train/run_folder/run_reporter.h"

#include <utility>

namespace trestle::train {
namespace {

// Returns nothing if no work is left.
std::optional<double> seconds_of(const TimeLeft& times, const TimeLeft::Work& work) {
  if (work.training == 0 && work.validation == 0) return std::nullopt;
  return times.of(work);
}

}  // namespace

void RunReporter::open(const RunFolder& folder, Files files, const Position& at,
                       Tensorboard tensorboard) {
  metrics_ = files == Files::New
                 ? std::make_unique<MetricsFile>(folder.metrics())
                 : std::make_unique<MetricsFile>(folder.metrics(), at.step, at.epoch);
  if (tensorboard == Tensorboard::On) events_.emplace(folder.path, at.step);
}

void RunReporter::batch(StepReport report, const TimeLeft::Work& epoch, const TimeLeft::Work& run) {
  report.seconds_left = seconds_of(times_, epoch);
  report.run_seconds_left = seconds_of(times_, run);
  progress_.step(report);
}

void RunReporter::validation_batch(StepReport report, const TimeLeft::Work& validation,
                                   const TimeLeft::Work& run) {
  report.seconds_left = seconds_of(times_, validation);
  report.run_seconds_left = seconds_of(times_, run);
  progress_.validation_step(report);
}

void RunReporter::step(const StepMetrics& metrics) {
  if (metrics_) metrics_->add_step(metrics);
  if (events_)
    events_->add(metrics.step, {{"training/loss", metrics.loss},
                                {"training/learning_rate", metrics.learning_rate},
                                {"training/gradient_norm", metrics.gradient_norm}});
}

void RunReporter::epoch(const EpochReport& report) {
  if (metrics_) metrics_->add_epoch(report);
  if (!events_) return;
  EventFile::Scalars scalars = {{"epoch/training_loss", report.training_loss},
                                {"epoch/examples_per_second", report.examples_per_second},
                                {"epoch/seconds", report.seconds}};
  if (const TokenRate rate = token_rate(report); rate.flops() > 0) {
    scalars.emplace_back("epoch/tokens_per_second", rate.tokens_per_second);
    scalars.emplace_back("epoch/model_flops_per_second", rate.flops());
    if (const auto share = rate.utilisation()) scalars.emplace_back("epoch/mfu", *share);
  }
  if (report.validation_loss)
    scalars.emplace_back("epoch/validation_loss", *report.validation_loss);
  if (report.metric) scalars.emplace_back("epoch/" + report.metric_name, *report.metric);
  events_->add(report.step, scalars);
}

}  // namespace trestle::train
