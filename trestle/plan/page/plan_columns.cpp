#include "trestle/plan/page/plan_columns.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/plan/search/memory_limit.h"

namespace trestle::plan {
namespace {

using Is = PlanColumn::Is;
using By = PlanColumn::By;

PlanCell number_cell(std::int64_t number) { return {text(number), static_cast<double>(number)}; }

PlanCell seconds_cell(double seconds) { return {format_duration(seconds), seconds}; }

PlanCell bytes_cell(double bytes) {
  return {format_bytes(std::llround(std::min(bytes, 9e18))), bytes};
}

using CellOf = std::function<PlanCell(const ReportOf&, const Plan&)>;

PlanColumn figure(std::string heading, std::string help, Is is, CellOf cell) {
  return {.heading = std::move(heading),
          .help = std::move(help),
          .is = is,
          .row = PlanColumn::Row::Always,
          .cell = std::move(cell)};
}

// A choice: a member of Strategy.
template <class Member>
PlanColumn choice(const std::string& heading, const std::string& help, Member member) {
  return {.heading = heading, .help = help, .cell = [member](const ReportOf&, const Plan& plan) {
            return number_cell(plan.strategy.*member);
          }};
}

PlanColumn choice_of_words(std::string heading, std::string help,
                           std::function<std::string(const Strategy&)> words) {
  return {.heading = std::move(heading),
          .help = std::move(help),
          .by = By::Words,
          .cell = [words = std::move(words)](const ReportOf&, const Plan& plan) {
            return PlanCell{.words = words(plan.strategy)};
          }};
}

// A part of the slowest stage's step.
PlanColumn part_of_step(std::string heading, std::string help, double StepPrediction::*part) {
  return {
      .heading = std::move(heading),
      .help = std::move(help),
      .is = Is::Simulated,
      .cell = [part](const ReportOf&, const Plan& plan) { return seconds_cell(plan.step.*part); }};
}

std::vector<PlanColumn> choice_columns() {
  return {
      choice("tensor", "Ranks that split each layer.", &Strategy::tensor),
      choice("pipeline", "Stages, each of some layers.", &Strategy::pipeline),
      choice("data", "Replicas, or ranks that shard their state.", &Strategy::data),
      choice("level",
             "The data ranks shard: 0 nothing, 1 the optimizer's state, 2 gradients too, "
             "3 parameters too.",
             &Strategy::level),
      choice("rows", "The data ranks form this number of rows; the ranks of a row shard the state.",
             &Strategy::replicate),
      choice_of_words("offload", "The shards are in the host's memory.",
                      [](const Strategy& s) { return s.offload ? "yes" : "no"; }),
      choice("micro-batch", "Examples that a stage computes at once.", &Strategy::micro_batch),
      choice_of_words("recompute", "Forwards that the backward computes again.",
                      [](const Strategy& s) { return std::string(to_string(s.recompute)); }),
      choice("blocks", "Only this number of blocks of each stage is recomputed; 0 is all.",
             &Strategy::recompute_layers),
      choice("stages", "Only this number of stages, the first, is recomputed; 0 is all.",
             &Strategy::recompute_stages),
      choice_of_words("schedule", "The order of forwards and backwards on the stages.",
                      [](const Strategy& s) { return s.pipeline > 1 ? s.schedule : "none"; }),
      choice("chunks", "Above 1 a stage has several runs of layers.", &Strategy::chunks),
      choice_of_words("precision", "The type of products; own is the model's.",
                      [](const Strategy& s) { return std::string(to_string(s.precision)); }),
      choice_of_words("token shards", "Tensor ranks split the tokens of norms and dropout too.",
                      [](const Strategy& s) { return s.sequence_parallel ? "yes" : "no"; }),
  };
}

std::vector<PlanColumn> figure_columns(const ReportOf& report) {
  std::vector<PlanColumn> columns = {
      figure("step", "The duration of one step.", Is::Simulated,
             [](const ReportOf&, const Plan& plan) { return seconds_cell(plan.step.seconds); })};
  columns.push_back(
      figure(report.model.tokens() > 1 ? "tokens/s" : "samples/s", "All devices together.",
             Is::Simulated, [](const ReportOf& of, const Plan& plan) {
               const double rate = plan.samples_per_second * static_cast<double>(of.model.tokens());
               return PlanCell{format_count(std::llround(rate)), rate};
             }));
  if (report.machine.peak.value > 0)
    columns.push_back(figure("MFU", report.model.flops_formula() + " / (step x devices x peak).",
                             Is::Simulated, [](const ReportOf&, const Plan& plan) {
                               const double share = 100 * plan.mfu;
                               return PlanCell{text(std::llround(share), " %"), share};
                             }));
  columns.push_back(
      figure("peak", "Bytes of the fullest device.", Is::Assumed,
             [](const ReportOf&, const Plan& plan) { return bytes_cell(plan.worst.total()); }));
  if (has_memory_limit(report.result))
    columns.push_back(
        figure("free", "Bytes that the fullest device has left.", Is::Assumed,
               [](const ReportOf&, const Plan& plan) { return bytes_cell(plan.headroom); }));
  if (report.machine.price_per_hour)
    columns.push_back(figure("price", "One step, in the currency of the machine's file.",
                             Is::Assumed, [](const ReportOf&, const Plan& plan) {
                               return PlanCell{money_text(plan.money), plan.money};
                             }));
  return columns;
}

}  // namespace

std::string_view to_string(PlanColumn::Is is) {
  switch (is) {
    case Is::Simulated:
      return "simulated";
    case Is::Measured:
      return "measured";
    case Is::Assumed:
      return "assumed";
    case Is::Choice:
      break;
  }
  return "choice";
}

bool has_memory_limit(const PlanResult& result) { return has_limit(result.available); }

std::vector<PlanColumn> plan_columns(const ReportOf& report) {
  std::vector<PlanColumn> columns = figure_columns(report);
  std::vector<PlanColumn> choices = choice_columns();
  std::move(choices.begin(), choices.end(), std::back_inserter(columns));
  using Step = StepPrediction;
  columns.push_back(part_of_step("compute", "The slowest stage computes.", &Step::compute));
  columns.push_back(part_of_step("messages", "It waits for messages of its tensor and data group.",
                                 &Step::exposed));
  columns.push_back(part_of_step("bubble", "It waits for other stages.", &Step::bubble));
  columns.push_back(part_of_step("update", "It updates its parameters.", &Step::optimizer));
  return columns;
}

}  // namespace trestle::plan
