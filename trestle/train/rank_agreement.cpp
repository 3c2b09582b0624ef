#include "trestle/train/rank_agreement.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/train/initial_weights.h"
#include "trestle/train/optimizers/parameter_groups.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/setup.h"

namespace trestle::train {
namespace {

std::string line_or_none(const std::vector<std::string>& lines, std::size_t line) {
  return line < lines.size() ? lines[line] : "none";
}

[[noreturn]] void throw_different_data(const std::string& one, std::size_t one_rank,
                                       const std::string& other, std::size_t other_rank) {
  throw UsageError(text("the ranks have different data: '", one, "' on rank ", one_rank, ", '",
                        other, "' on rank ", other_rank),
                   {.hint = "All machines need the same files, under the same names."});
}

// A replica's number, and lines: the number of its examples, then their names.
using ReadData = std::pair<int, std::vector<std::string>>;

// One rank of a pipeline reads the inputs and another one the targets: both must be of the same
// examples. Replicas read different examples of the same number of them.
void refuse_different_data(const RunRanks& ranks, const std::optional<ReadData>& mine) {
  const auto all = ranks.gather(mine);
  std::map<int, std::size_t> first_of_replica;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank]) continue;
    const auto& [replica, own] = *all[rank];
    const auto first = first_of_replica.try_emplace(replica, rank).first->second;
    const auto other = first == rank ? first_of_replica.begin()->second : first;
    const auto& theirs = all[other]->second;
    const std::size_t end = first == rank ? 1 : std::max(own.size(), theirs.size());
    for (std::size_t line = 0; line < end; ++line)
      if (line_or_none(own, line) != line_or_none(theirs, line))
        throw_different_data(line_or_none(theirs, line), other, line_or_none(own, line), rank);
  }
}

std::string first_difference(const std::vector<std::string>& first,
                             const std::vector<std::string>& other, std::size_t rank) {
  for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    const std::string a = i < first.size() ? first[i] : "", b = i < other.size() ? other[i] : "";
    if (a != b) return text("'", a, "' on rank 0, '", b, "' on rank ", rank);
  }
  return "";
}

// The report of all ranks on loading one file, from each rank's own.
checkpoint::LoadReport joined_report(const checkpoint::LoadReport& report, const RunRanks& ranks,
                                     std::int64_t loading_ranks) {
  checkpoint::LoadReport all = report;
  all.loaded =
      static_cast<std::size_t>(ranks.sum_of_pipeline(static_cast<std::int64_t>(report.loaded)));
  all.converted =
      static_cast<std::size_t>(ranks.sum_of_pipeline(static_cast<std::int64_t>(report.converted)));
  all.missing = ranks.gather_lines(ranks.counts() ? report.missing : std::vector<std::string>());
  all.mismatched =
      ranks.gather_lines(ranks.counts() ? report.mismatched : std::vector<std::string>());
  const auto unexpected = ranks.gather_lines(report.unexpected);
  all.unexpected.clear();
  for (const auto& name : report.unexpected)
    if (std::count(unexpected.begin(), unexpected.end(), name) == loading_ranks)
      all.unexpected.push_back(name);
  return all;
}

// The numbers of the model's parameters that this rank adds to the count: a slice counts on each
// tensor rank, a whole parameter on the first one.
struct ParameterCount {
  std::int64_t all = 0, frozen = 0;
};
ParameterCount own_parameters(const Pipeline& pipeline, const RunRanks& ranks) {
  ParameterCount count;
  if (ranks.replica() > 0) return count;
  const nn::ParameterSlices slices = pipeline.parameter_slices();
  for (const auto& [name, parameter] : pipeline.named_parameters()) {
    if (!ranks.counts() && !slices.contains(name)) continue;
    count.all += parameter.numel();
    if (!parameter.requires_grad()) count.frozen += parameter.numel();
  }
  return count;
}

}  // namespace

void refuse_different_recipes(const recipe::Recipe& recipe, const RunRanks& ranks) {
  if (ranks.alone()) return;
  const auto all = ranks.gather(recipe::to_toml(recipe));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto first = lines_of(all[0]), other = lines_of(all[rank]);
    if (first == other) continue;
    throw UsageError("the ranks have different recipes: " + first_difference(first, other, rank),
                     {.hint = "Give all ranks the same recipe and flags."});
  }
}

double data_mark_of(const std::optional<data::Batch>& first, std::int64_t examples,
                    const RunRanks& ranks) {
  const bool has_inputs = first && ranks.is_first() && ranks.tensor().ranks.rank() == 0;
  const auto names = ranks.gather_lines(has_inputs ? first->names : std::vector<std::string>());
  if (!ranks.alone()) {
    std::optional<ReadData> mine;
    if (first) {
      mine.emplace(ranks.replica(), std::vector{text(examples, " to train on")});
      mine->second.insert(mine->second.end(), first->names.begin(), first->names.end());
    }
    refuse_different_data(ranks, mine);
  }
  return static_cast<double>(fnv1a(join(names, "\n")) >> 11);
}

void load_weights_over_ranks(const recipe::Recipe& recipe, const Pipeline& pipeline,
                             const RunRanks& ranks, Progress& progress) {
  const NamedTensors model = weights_of(pipeline);
  if (ranks.alone()) return load_initial_weights(recipe, model, progress);
  for (const InitialFile& file : initial_files(recipe, pipeline.parameter_slices())) {
    const NamedTensors own = file.filled(model);
    checkpoint::LoadReport report;
    if (!own.empty()) report = file.load(own, {.strict = false});
    const checkpoint::LoadReport all = joined_report(report, ranks, ranks.sum(own.empty() ? 0 : 1));
    if (file.strict && !all.whole())
      throw FormatError(
          text("the ", file.title, " do not fit the model: ", checkpoint::describe(all)),
          {.file = file.path});
    note_loaded(file, all, progress);
  }
}

void freeze_over_ranks(const recipe::Recipe& recipe, Pipeline& pipeline, const RunRanks& ranks) {
  if (ranks.alone()) return freeze_parameters(recipe, pipeline);
  std::vector<std::string> names;
  for (const auto& [name, parameter] : pipeline.named_parameters()) names.push_back(name);
  NamedTensors all;
  for (const auto& name : ranks.gather_lines(names))
    all.emplace_back(name, at::empty({0}).set_requires_grad(true));
  check_parameter_names(recipe, all);
  freeze_named(recipe, pipeline.named_parameters());
}

void add_ranks(const std::vector<Device>& devices, const Pipeline& pipeline, const RunRanks& ranks,
               RunPlan* plan) {
  if (ranks.alone()) return;
  plan->devices = ranks.words() + " · " + describe_devices(devices);
  const ParameterCount own = own_parameters(pipeline, ranks);
  plan->parameters = ranks.sum(own.all);
  plan->frozen_parameters = ranks.sum(own.frozen);
  std::vector<std::string> rows;
  for (std::size_t stage = 0; stage < plan->stages.size(); ++stage) {
    const auto& row = plan->stages[stage];
    if (!row.device.empty() && ranks.counts())
      rows.push_back(text(stage, " ", row.budget, " ", row.device));
  }
  for (const auto& line : ranks.gather_lines(rows)) {
    std::istringstream words(line);
    std::size_t stage = 0;
    words >> stage;
    auto& row = plan->stages.at(stage);
    words >> row.budget >> row.device;
  }
  add_suggestion(pipeline, plan);
}

}  // namespace trestle::train
