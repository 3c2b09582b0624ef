#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>

#include "trestle/base/error.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/train/data_set.h"
#include "trestle/train/environment.h"
#include "trestle/train/initial_weights.h"
#include "trestle/train/parameter_groups.h"
#include "trestle/train/training_run.h"

namespace trestle::train {

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// All ranks' lists as one.
std::vector<std::string> gather_lists(const RunRanks& ranks, const std::vector<std::string>& mine) {
  std::vector<std::string> all;
  for (const auto& one : ranks.gather(join(mine, "\n")))
    for (auto& line : lines_of(one)) all.push_back(std::move(line));
  return all;
}

// Inputs are read on one rank, targets on another: they must be of the same examples. Replicas read other ones of a batch, and
// have as many in all.
void refuse_other_data(const RunRanks& ranks, const std::optional<std::size_t>& examples,
                       const std::vector<std::string>& names) {
  std::string mine;
  if (examples)
    mine = text(ranks.replica(), "\n", *examples, " to train on", names.empty() ? "" : "\n",
                join(names, "\n"));
  const auto all = ranks.gather(mine);
  std::map<std::string, std::size_t> first_of_replica;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const auto own = lines_of(all[rank]);
    const auto first = first_of_replica.try_emplace(own[0], rank).first->second;
    const auto other = first == rank ? first_of_replica.begin()->second : first;
    const auto theirs = lines_of(all[other]);
    const std::size_t end = first == rank ? 2 : std::max(own.size(), theirs.size());
    for (std::size_t line = 1; line < end; ++line) {
      const auto said = [&](const auto& lines) {
        return line < lines.size() ? lines[line] : "none";
      };
      if (said(own) == said(theirs)) continue;
      throw UsageError(text("the ranks have different data: '", said(theirs), "' on rank ", other,
                            ", '", said(own), "' on rank ", rank),
                       {.hint = "All machines need the same files, under the same names."});
    }
  }
}

}  // namespace

// Before anything else: ranks that do different things are told what differs.
void TrainingRun::refuse_other_recipes() const {
  if (ranks_.alone()) return;
  const std::string mine = recipe::to_toml(recipe_);
  const auto all = ranks_.gather(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto first = lines_of(all[0]), other = lines_of(all[rank]);
    if (first == other) continue;
    std::string difference;
    for (std::size_t i = 0; i < std::max(first.size(), other.size()) && difference.empty(); ++i) {
      const std::string a = i < first.size() ? first[i] : "", b = i < other.size() ? other[i] : "";
      if (a != b) difference = text("'", a, "' on rank 0, '", b, "' on rank ", rank);
    }
    throw UsageError("the ranks have different recipes: " + difference,
                     {.hint = "Give all ranks the same recipe and flags."});
  }
}

// The names of the first batch: images that came or went change which come first. Not noticed: a new
// name outside of this batch, and other numbers in an array. A number that JSON keeps exactly.
double TrainingRun::data_mark_of(const std::optional<data::Batch>& first) const {
  const bool has_inputs = first && ranks_.is_first();
  const auto all = gather_lists(ranks_, has_inputs ? first->names : std::vector<std::string>());
  const std::string names = join(all, "\n");
  if (!ranks_.alone())
    refuse_other_data(
        ranks_,
        first ? std::optional(static_cast<std::size_t>(task_.training->examples())) : std::nullopt,
        first ? first->names : std::vector<std::string>());
  return static_cast<double>(fnv1a(names) >> 11);
}

// Each rank takes its own from the file; what no rank takes is too much.
void TrainingRun::load_weights_over_ranks() {
  if (ranks_.alone()) return load_initial_weights(recipe_, weights(), progress_);
  const std::string& file = recipe_.model.weights;
  if (file.empty()) return;
  checkpoint::LoadReport report;
  const NamedTensors own = weights();
  if (!own.empty()) report = checkpoint::load_weights(own, file, {.strict = false});
  checkpoint::LoadReport all = report;
  all.loaded =
      static_cast<std::size_t>(ranks_.sum_of_pipeline(static_cast<std::int64_t>(report.loaded)));
  all.converted =
      static_cast<std::size_t>(ranks_.sum_of_pipeline(static_cast<std::int64_t>(report.converted)));
  const bool counts = ranks_.replica() == 0;  // the others have the same
  all.missing = gather_lists(ranks_, counts ? report.missing : std::vector<std::string>());
  all.mismatched = gather_lists(ranks_, counts ? report.mismatched : std::vector<std::string>());
  const auto unexpected = gather_lists(ranks_, report.unexpected);
  const auto takers = ranks_.sum(own.empty() ? 0 : 1);
  all.unexpected.clear();
  for (const auto& name : report.unexpected)
    if (std::count(unexpected.begin(), unexpected.end(), name) == takers)
      all.unexpected.push_back(name);
  if (recipe_.model.weights_strict && !all.whole())
    throw FormatError(text("the weights do not fit the model: ", checkpoint::describe(all)),
                      {.file = file});
  progress_.note(text("weights   ", file, ": ", checkpoint::describe(all)));
}

void TrainingRun::freeze_over_ranks() {
  if (ranks_.alone()) return freeze_parameters(recipe_, *pipeline_);
  std::vector<std::string> names;
  for (const auto& [name, parameter] : pipeline_->named_parameters()) names.push_back(name);
  NamedTensors all;
  for (const auto& name : gather_lists(ranks_, names))
    all.emplace_back(name, at::empty({0}).set_requires_grad(true));
  check_parameter_names(recipe_, all);
  freeze_named(recipe_, pipeline_->named_parameters());
}

// The plan's lines are those of all ranks.
void TrainingRun::add_ranks(const std::vector<Device>& devices) {
  if (ranks_.alone()) return;
  plan_.devices = ranks_.words() + " · " + describe_devices(devices);
  plan_.parameters = ranks_.sum_of_pipeline(plan_.parameters);
  std::vector<std::string> rows;
  for (std::size_t stage = 0; stage < plan_.stages.size(); ++stage) {
    const auto& row = plan_.stages[stage];
    if (!row.device.empty() && ranks_.replica() == 0)
      rows.push_back(text(stage, " ", row.budget, " ", row.device));
  }
  for (const auto& line : gather_lists(ranks_, rows)) {
    std::istringstream words(line);
    std::size_t stage = 0;
    words >> stage;
    auto& row = plan_.stages.at(stage);
    words >> row.budget >> row.device;
  }
  add_suggestion(*pipeline_, &plan_);
}

void TrainingRun::share(Judgement& judged) const {
  if (ranks_.alone()) return;
  const auto numbers = ranks_.sum_of_last(
      {judged.loss.sum, judged.loss.count, judged.metric.sum, judged.metric.count});
  judged.loss = {numbers[0], numbers[1]};
  judged.metric = {numbers[2], numbers[3]};
}

std::vector<double> TrainingRun::shared_shares(const std::vector<data::Batch>& group) const {
  if (group.size() <= 1) return {1};
  std::vector<double> weights(group.size());
  for (std::size_t i = 0; i < group.size() && ranks_.is_last(); ++i)
    weights[i] = weight_of(task_, group[i]);
  weights = ranks_.sum_of_last(std::move(weights));
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight = all > 0 ? weight / all : 0;
  return weights;
}

void TrainingRun::gather_peaks() {
  if (ranks_.alone()) return;
  std::vector<std::string> rows;
  for (const auto& peak : peaks_)
    rows.push_back(text(peak.predicted, " ", peak.measured, " ", peak.device));
  peaks_.clear();
  for (const auto& line : gather_lists(ranks_, rows)) {
    std::istringstream words(line);
    DevicePeak peak;
    words >> peak.predicted >> peak.measured >> peak.device;
    const auto known = std::find_if(peaks_.begin(), peaks_.end(),
                                    [&](const auto& other) { return other.device == peak.device; });
    if (known == peaks_.end())
      peaks_.push_back(peak);
    else
      known->measured = std::max(known->measured, peak.measured);
  }
}

}  // namespace trestle::train
