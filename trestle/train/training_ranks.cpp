#include <ATen/Functions.h>

#include <algorithm>
#include <sstream>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
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

// Inputs are read on one rank, targets on another: they must be of the same examples.
void refuse_other_data(const RunRanks& ranks, const std::optional<std::size_t>& examples,
                       const std::vector<std::string>& names) {
  std::string mine;
  if (examples)
    mine = text(*examples, " to train on", names.empty() ? "" : "\n", join(names, "\n"));
  const auto all = ranks.gather(mine);
  std::size_t first = 0;
  while (first < all.size() && all[first].empty()) ++first;
  for (std::size_t rank = first + 1; rank < all.size(); ++rank) {
    if (all[rank].empty() || all[rank] == all[first]) continue;
    const auto a = lines_of(all[first]), b = lines_of(all[rank]);
    std::size_t line = 0;
    while (line < std::min(a.size(), b.size()) && a[line] == b[line]) ++line;
    const auto said = [&](const auto& lines) { return line < lines.size() ? lines[line] : "none"; };
    throw UsageError(text("the ranks have different data: '", said(a), "' on rank ", first, ", '",
                          said(b), "' on rank ", rank),
                     {.hint = "All machines need the same files, under the same names."});
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
  const std::string names = first ? join(first->names, "\n") : "";
  if (!ranks_.alone())
    refuse_other_data(
        ranks_,
        first ? std::optional(static_cast<std::size_t>(task_.training->examples())) : std::nullopt,
        first ? first->names : std::vector<std::string>());
  return static_cast<double>(name_hash(ranks_.from_first(names)) >> 11);
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
  all.loaded = static_cast<std::size_t>(ranks_.sum(static_cast<std::int64_t>(report.loaded)));
  all.converted = static_cast<std::size_t>(ranks_.sum(static_cast<std::int64_t>(report.converted)));
  all.missing = gather_lists(ranks_, report.missing);
  all.mismatched = gather_lists(ranks_, report.mismatched);
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
  plan_.parameters = ranks_.sum(plan_.parameters);
  std::vector<std::string> rows;
  for (std::size_t stage = 0; stage < plan_.stages.size(); ++stage) {
    const auto& row = plan_.stages[stage];
    if (!row.device.empty()) rows.push_back(text(stage, " ", row.budget, " ", row.device));
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
  const auto numbers = ranks_.from_last(
      {judged.loss.sum, judged.loss.count, judged.metric.sum, judged.metric.count});
  judged.loss = {numbers[0], numbers[1]};
  judged.metric = {numbers[2], numbers[3]};
}

std::vector<double> TrainingRun::shared_shares(const std::vector<data::Batch>& group) const {
  if (group.size() <= 1 || ranks_.alone()) return shares_of(group);
  std::vector<double> shares(group.size());
  if (ranks_.is_last()) shares = shares_of(group);
  return ranks_.from_last(std::move(shares));
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
