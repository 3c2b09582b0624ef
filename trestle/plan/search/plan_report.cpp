#include "trestle/plan/search/plan_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/plan/search/memory_limit.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

using Json = nlohmann::ordered_json;

Bytes whole_bytes(double bytes) { return std::llround(std::min(bytes, 9e18)); }

std::string bytes_text(double bytes) { return format_bytes(whole_bytes(bytes)); }

std::string percent(double share) { return text(std::llround(100 * share), " %"); }

// At least one space before the words, so that two cells never touch.
std::string right(const std::string& words, int width) {
  return std::string(static_cast<std::size_t>(std::max(width - columns_of(words), 1)), ' ') + words;
}

double tokens_per_second(const ReportOf& report, const Plan& plan) {
  return plan.samples_per_second * static_cast<double>(report.model.tokens());
}

struct Difference {
  const char* name;
  double seconds;
};

// "it computes 1.2 s longer and waits 0.4 s longer for messages": why `plan` is slower than `best`.
std::string why_slower(const Plan& plan, const Plan& best) {
  std::array differences = {
      Difference{"computes", plan.step.compute - best.step.compute},
      Difference{"waits for messages", plan.step.exposed - best.step.exposed},
      Difference{"waits for other stages", plan.step.bubble - best.step.bubble},
      Difference{"updates", plan.step.optimizer - best.step.optimizer}};
  std::sort(differences.begin(), differences.end(),
            [](const auto& a, const auto& b) { return std::abs(a.seconds) > std::abs(b.seconds); });
  std::vector<std::string> parts;
  for (const Difference& difference : differences)
    if (std::abs(difference.seconds) > 1e-4 * best.step.seconds && parts.size() < 2)
      parts.push_back(text("it ", difference.name, " ",
                           format_duration(std::abs(difference.seconds)),
                           difference.seconds > 0 ? " longer" : " less"));
  return join(parts, ", ");
}

std::string head_text(const ReportOf& report) {
  const PlanRequest& request = report.request;
  const std::string kept = to_string(request.kept);
  return text(report.model.name(), " · ", counted(request.devices, "device"), " of ",
              report.machine.name, " · batch ", request.batch,
              kept.empty() ? "" : " · keeps " + kept, " · by ", to_string(request.goal));
}

void add_table(const ReportOf& report, int columns, std::ostringstream& out) {
  const bool money = report.machine.price_per_hour.has_value();
  const bool mfu = report.machine.peak.value > 0;
  out << " #" << right("step", 10)
      << right(report.model.tokens() > 1 ? "tokens/s" : "samples/s", 11)
      << (mfu ? right("MFU", 6) : "") << right("peak", 11) << right("free", 11)
      << right("compute", 10) << right("messages", 10) << right("bubble", 9) << right("update", 9)
      << (money ? right("price", 9) : "") << "\n";
  int number = 0;
  for (const Plan& plan : report.result.best) {
    out << right(text(++number), 2) << right(format_duration(plan.step.seconds), 10)
        << right(format_count(std::llround(tokens_per_second(report, plan))), 11)
        << (mfu ? right(percent(plan.mfu), 6) : "") << right(bytes_text(plan.worst.total()), 11)
        << right(has_limit(report.result.available) ? bytes_text(plan.headroom) : "no limit", 11)
        << right(format_duration(plan.step.compute), 10)
        << right(format_duration(plan.step.exposed), 10)
        << right(format_duration(plan.step.bubble), 9)
        << right(format_duration(plan.step.optimizer), 9)
        << (money ? right(money_text(plan.money), 9) : "") << "\n";
    out << folded("    " + to_string(plan.strategy), columns, 4) << "\n";
  }
}

std::string ledger_text(const Ledger& ledger) {
  std::vector<std::string> parts;
  for (const LedgerLine& line : lines_of(ledger))
    parts.push_back(text(line.name, " ", bytes_text(line.bytes)));
  if (ledger.host > 0) parts.push_back(text("in the host's memory ", bytes_text(ledger.host)));
  return join(parts, " · ");
}

void add_best(const ReportOf& report, int columns, std::ostringstream& out) {
  const Plan& best = report.result.best.front();
  out << "\n"
      << folded(text("1 is the best: ", format_duration(best.step.seconds), " per step (",
                     format_duration(least_seconds(best.step.seconds, report.machine)), " to ",
                     format_duration(most_seconds(best.step.seconds, report.machine)), ") · ",
                     counted(best.micro_batches, "micro-batch", "micro-batches"),
                     " per data rank · stage ", best.step.slowest_stage, " is the slowest · stage ",
                     best.worst.stage, " needs the most memory"),
                columns, 2)
      << "\n"
      << folded("  its bytes: " + ledger_text(best.worst), columns, 4) << "\n";
  if (report.result.best.size() < 2) return;
  const Plan& second = report.result.best[1];
  out << wrapped(text("2 lost: ", why_lost(report, second, best), "."), columns, 2) << "\n";
  // The range is one of times: plans that are ranked by something else have no such sentence.
  if (report.request.goal != Goal::Time) return;
  int within = 0;
  for (const Plan& plan : report.result.best) {
    if (plan.step.seconds < least_seconds(best.step.seconds, report.machine) ||
        plan.step.seconds > most_seconds(best.step.seconds, report.machine))
      break;
    ++within;
  }
  if (within > 1)
    out << wrapped(text("The first ", within,
                        " differ by less than the range of a prediction: "
                        "measure before you choose between them."),
                   columns, 2)
        << "\n";
}

void add_too_large(const TooLarge& large, double available, int columns, std::ostringstream& out) {
  out << folded(text("does not fit: ", to_string(large.strategy)), columns, 2) << "\n"
      << folded(text("  stage ", large.worst.stage, " needs ", bytes_text(large.worst.total()),
                     ", ", bytes_text(large.overshoot), " more than ", bytes_text(available), ": ",
                     ledger_text(large.worst)),
                columns, 4)
      << "\n";
  for (const Plan& change : large.changes) {
    const double slower = change.step.seconds - large.bound;
    out << folded(text("  fits: ", to_string(change.strategy), " · ",
                       format_duration(change.step.seconds), " per step, ",
                       format_duration(std::abs(slower)), slower >= 0 ? " more than" : " less than",
                       " the least it could take"),
                  columns, 4)
        << "\n";
  }
}

void add_missing(const ReportOf& report, int columns, std::ostringstream& out) {
  for (const RuleCount& rule : report.result.rules)
    out << wrapped(
               text("not legal: ", rule.rule, " · ", rule.why,
                    rule.strategies > 1 ? text(" (", counted(rule.strategies, "such choice"), ")")
                                        : ""),
               columns, 2)
        << "\n";
  for (const TooLarge& large : report.result.too_large)
    add_too_large(large, report.result.available, columns, out);
}

// Whether something fits on a multiple of the devices. Large multiples are not all tried.
std::string least_devices_text(const ReportOf& report) {
  std::vector<int> all, some;  // tried without a gap from 2 on, and the rest
  for (const int multiple : multiples_tried(report.model))
    (multiple == std::ssize(all) + 2 ? all : some).push_back(multiple);
  const int devices = report.request.devices;
  const std::optional<int> least = report.result.least_devices;
  if (!least)
    return text("no multiple up to ", all.back(), " times these fits",
                some.empty() ? std::string() : text(", nor ", join(some, ", "), " times"));
  if (*least / devices <= all.back())
    return text(*least, " (the first multiple of ", devices,
                " on which one fits with the tensor ranks that were searched)");
  return text(*least, " (the first of ", join(some, ", "), " times ", devices,
              " on which one fits; no multiple up to ", all.back(), " times does)");
}

void add_nothing_fits(const ReportOf& report, int columns, std::ostringstream& out) {
  const PlanResult& result = report.result;
  out << wrapped(text("None of ", counted(result.listed, "legal strategy", "legal strategies"),
                      " fits into ", bytes_text(result.available), " of a device."),
                 columns, 2)
      << "\n";
  if (!result.least_memory) return;
  const TooLarge& least = *result.least_memory;
  out << folded(text("least memory: ", bytes_text(least.worst.total()), " · ",
                     to_string(least.strategy), " · it would take ",
                     format_duration(result.least_memory_step.seconds), " per step"),
                columns, 2)
      << "\n"
      << folded("  its bytes: " + ledger_text(least.worst), columns, 4) << "\n";
  out << "least devices: " << least_devices_text(report) << "\n";
}

Json strategy_json(const PlannedModel& model, const Strategy& strategy) {
  const Precision precision =
      strategy.precision == Precision::Own ? model.precisions().front() : strategy.precision;
  return {{"tensor", strategy.tensor},
          {"pipeline", strategy.pipeline},
          {"data", strategy.data},
          {"level", strategy.level},
          {"replicate", strategy.replicate},
          {"offload", strategy.offload},
          {"micro_batch", strategy.micro_batch},
          {"recompute", to_string(strategy.recompute)},
          {"recompute_layers", strategy.recompute_layers},
          {"recompute_stages", strategy.recompute_stages},
          {"schedule", strategy.schedule},
          {"chunks", strategy.chunks},
          {"sequence_parallel", strategy.sequence_parallel},
          {"precision", to_string(precision)}};
}

Json ledger_json(const Ledger& ledger) {
  Json json = {{"stage", ledger.stage}, {"total", whole_bytes(ledger.total())}};
  for (const LedgerLine& line : lines_of(ledger))
    json[std::string(line.name)] = whole_bytes(line.bytes);
  if (ledger.host > 0) json["host"] = whole_bytes(ledger.host);
  return json;
}

Json group_json(const GroupBytes& bytes) {
  return {{"tensor", whole_bytes(bytes.tensor)},
          {"pipeline", whole_bytes(bytes.pipeline)},
          {"data", whole_bytes(bytes.data)}};
}

// "12.0 GiB (tensor 11.5 GiB · data 512.0 MiB)"
std::string group_text(const GroupBytes& bytes) {
  std::vector<std::string> parts;
  for (const auto& [name, amount] :
       {std::pair("tensor", bytes.tensor), std::pair("pipeline", bytes.pipeline),
        std::pair("data", bytes.data)})
    if (amount > 0) parts.push_back(text(name, " ", bytes_text(amount)));
  return text(bytes_text(bytes.total()), " (", join(parts, " · "), ")");
}

std::string sent_text(const LinkBytes& sent) {
  std::vector<std::string> links;
  if (sent.inside.total() > 0) links.push_back(group_text(sent.inside) + " inside its node");
  if (sent.between.total() > 0) links.push_back(group_text(sent.between) + " to other nodes");
  return text("a rank of stage ", sent.stage, " sends per step ", join(links, " and "));
}

Json plan_object(const ReportOf& report, const Plan& plan) {
  Json json = {
      {"strategy", strategy_json(report.model, plan.strategy)},
      {"micro_batches", plan.micro_batches},
      {"step_seconds", plan.step.seconds},
      {"step_seconds_from", least_seconds(plan.step.seconds, report.machine)},
      {"step_seconds_to", most_seconds(plan.step.seconds, report.machine)},
      {"samples_per_second", plan.samples_per_second},
      {"tokens_per_second", tokens_per_second(report, plan)},
      {"compute_seconds", plan.step.compute},
      {"exposed_seconds", plan.step.exposed},
      {"bubble_seconds", plan.step.bubble},
      {"optimizer_seconds", plan.step.optimizer},
      {"slowest_stage", plan.step.slowest_stage},
      {"mfu", plan.mfu > 0 ? Json(plan.mfu) : Json(nullptr)},
      {"peak_bytes", whole_bytes(plan.worst.total())},
      {"headroom_bytes",
       has_limit(report.result.available) ? Json(whole_bytes(plan.headroom)) : Json(nullptr)},
      {"ledger", ledger_json(plan.worst)}};
  if (plan.sent.total() > 0)
    json["sent_bytes"] = {{"stage", plan.sent.stage},
                          {"inside_node", group_json(plan.sent.inside)},
                          {"between_nodes", group_json(plan.sent.between)}};
  if (report.machine.price_per_hour) json["price_per_step"] = plan.money;
  return json;
}

Json too_large_json(const ReportOf& report, const TooLarge& large) {
  Json json = {{"strategy", strategy_json(report.model, large.strategy)},
               {"overshoot_bytes", whole_bytes(large.overshoot)},
               {"least_step_seconds", large.bound},
               {"ledger", ledger_json(large.worst)},
               {"changes", Json::array()}};
  for (const Plan& change : large.changes) json["changes"].push_back(plan_object(report, change));
  return json;
}

}  // namespace

std::string money_text(double money) {
  std::ostringstream out;
  out.precision(3);
  out << money;
  return out.str();
}

std::string why_lost(const ReportOf& report, const Plan& plan, const Plan& best) {
  const double slower = plan.step.seconds - best.step.seconds;
  const double larger = plan.worst.total() - best.worst.total();
  std::vector<std::string> parts;
  if (report.request.goal == Goal::Memory && larger > 0)
    parts.push_back(text("its peak is ", bytes_text(larger), " larger"));
  if (report.request.goal == Goal::Money && plan.money > best.money)
    parts.push_back(text("a step costs ", money_text(plan.money - best.money), " more"));
  if (std::abs(slower) > 1e-9 * best.step.seconds) {
    parts.push_back(text("it takes ", format_duration(std::abs(slower)),
                         slower > 0 ? " longer" : " less", " per step"));
    const std::string why = why_slower(plan, best);
    if (!why.empty()) parts.push_back(why);
  } else if (larger > 0 && parts.empty()) {
    parts.push_back(
        text("it takes the same time, and its peak is ", bytes_text(larger), " larger"));
  } else if (parts.empty()) {
    parts.emplace_back("it takes the same time and memory");
  }
  return join(parts, ": ");
}

double least_seconds(double predicted, const Machine& machine) {
  return predicted / (1 + machine.transformer.spread.value);
}

double most_seconds(double predicted, const Machine& machine) {
  return predicted / (1 - std::min(machine.transformer.spread.value, largest_spread));
}

std::string plan_report(const ReportOf& report, int columns) {
  const PlanResult& result = report.result;
  std::ostringstream out;
  out << folded(head_text(report), columns, 2) << "\n\n";
  if (result.best.empty()) {
    add_nothing_fits(report, columns, out);
  } else {
    add_table(report, columns, out);
    add_best(report, columns, out);
  }
  out << "\n";
  add_missing(report, columns, out);
  out << folded(text(counted(result.listed, "legal strategy", "legal strategies"), " · ",
                     result.fitting, " fit · ", result.simulated, " simulated with ",
                     counted(result.tables, "table"), " · ", result.bounded,
                     " cannot be better than the last above"),
                columns, 2)
      << "\n";
  out << wrapped(report.model.sources(report.machine), columns, 0) << "\n";
  return out.str();
}

std::string explained(const ReportOf& report, const Plan& plan, int columns) {
  std::ostringstream out;
  const std::vector<Ledger> ledgers = report.model.ledgers(plan.strategy, plan.micro_batches);
  const auto same = [](const Ledger& a, const Ledger& b) {
    return ledger_text(a) == ledger_text(b);
  };
  for (std::size_t first = 0; first < ledgers.size();) {
    std::size_t next = first + 1;
    while (next < ledgers.size() && same(ledgers[first], ledgers[next])) ++next;
    const std::string stages =
        next == first + 1 ? text("stage ", first) : text("stages ", first, " to ", next - 1);
    out << folded(text(stages, " · ", bytes_text(ledgers[first].total()), " · ",
                       ledger_text(ledgers[first])),
                  columns, 4)
        << "\n";
    first = next;
  }
  const StrategyCosts costs = report.model.costs(plan.strategy, plan.micro_batches);
  const auto& slowest = costs.costs.stages.at(static_cast<std::size_t>(plan.step.slowest_stage));
  out << folded(text("stage ", plan.step.slowest_stage, " · ", plan.micro_batches,
                     " times forward ", format_duration(slowest.forward), " and backward ",
                     format_duration(slowest.backward), " · reduction ",
                     format_duration(slowest.reduce), " · update ", format_duration(slowest.step)),
                columns, 4)
      << "\n";
  if (plan.sent.total() > 0) out << folded(sent_text(plan.sent), columns, 4) << "\n";
  if (plan.strategy.chunks > 1)
    out << wrapped(text("The timeline is that of 1f1b; the time in which it fills and drains is "
                        "divided by ",
                        plan.strategy.chunks, " in the table above."),
                   columns, 2)
        << "\n";
  return out.str();
}

schedule::Timeline timeline_of_plan(const ReportOf& report, const Plan& plan) {
  const StrategyCosts costs = report.model.costs(plan.strategy, plan.micro_batches);
  schedule::Timeline timeline = simulate::simulate(
      costs.table ? *costs.table : table_of(plan.strategy, plan.micro_batches), costs.costs);
  timeline.title = text("simulated: ", to_string(plan.strategy));
  return timeline;
}

std::string plan_json(const ReportOf& report) {
  const PlanResult& result = report.result;
  Json json = {{"model", report.model.name()},
               {"machine", report.machine.name},
               {"devices", report.request.devices},
               {"batch", report.request.batch},
               {"goal", to_string(report.request.goal)},
               {"keep", to_string(report.request.kept)},
               {"fits", !result.best.empty()}};
  if (!result.best.empty()) {
    json["predicted_step_seconds"] = result.best.front().step.seconds;
    json["strategy"] = strategy_json(report.model, result.best.front().strategy);
  }
  if (result.best.empty() && result.least_memory && result.listed == 1) {
    json["predicted_step_seconds"] = result.least_memory_step.seconds;
    json["strategy"] = strategy_json(report.model, result.least_memory->strategy);
  }
  json["plans"] = Json::array();
  for (const Plan& plan : result.best) json["plans"].push_back(plan_object(report, plan));
  if (result.best.size() > 1)
    json["second_lost"] = why_lost(report, result.best[1], result.best[0]);
  json["not_legal"] = Json::array();
  for (const RuleCount& rule : result.rules)
    json["not_legal"].push_back(
        {{"rule", rule.rule}, {"why", rule.why}, {"choices", rule.strategies}});
  json["too_large"] = Json::array();
  for (const TooLarge& large : result.too_large)
    json["too_large"].push_back(too_large_json(report, large));
  if (result.least_memory) json["least_memory"] = too_large_json(report, *result.least_memory);
  if (result.best.empty())
    json["least_devices"] = result.least_devices ? Json(*result.least_devices) : Json(nullptr);
  json["counts"] = {{"legal", result.listed},
                    {"fitting", result.fitting},
                    {"simulated", result.simulated},
                    {"tables", result.tables},
                    {"bounded", result.bounded}};
  json["sources"] = {{"seconds", "simulated"},
                     {"bytes", "assumed"},
                     {"constants", report.machine.transformer.matrix_efficiency.from},
                     {"range", report.machine.transformer.spread.from},
                     {"mfu", report.model.flops_formula() + " / (seconds x devices x peak)"}};
  return json.dump();
}

}  // namespace trestle::plan
