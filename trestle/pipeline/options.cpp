#include "trestle/pipeline/options.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/optim/gradient_norms.h"
#include "trestle/pipeline/execute/cut.h"
#include "trestle/pipeline/execute/executor.h"
#include "trestle/schedule/validate.h"

namespace trestle::pipeline {
namespace {

using Mistakes = std::vector<std::string>;

void check_table(const schedule::Schedule& table, int stages, Mistakes& mistakes) {
  if (table.stages != stages) {
    mistakes.push_back(
        text("the given table is for ", table.stages, " stages, the pipeline has ", stages));
  }
  std::set<std::string> unknown;
  for (const auto& rank : table.ranks) {
    for (const auto& action : rank) {
      if (!schedule::is_for_pipelines(action.kind)) unknown.insert(schedule::to_string(action));
    }
  }
  if (unknown.empty()) return;
  const std::size_t shown = std::min<std::size_t>(unknown.size(), 3);
  mistakes.push_back(
      text("the given table has actions that a pipeline cannot run: ",
           join(std::vector(unknown.begin(), std::next(unknown.begin(), shown)), ", "),
           shown < unknown.size() ? ", ..." : "",
           "; a table has F, B, I, W and overlapped pairs, and the pipeline adds sends, receives, "
           "recomputation, reductions, norms and steps"));
}

bool is_known(const std::string& schedule) {
  const auto& known = schedule::known_schedules();
  return std::any_of(known.begin(), known.end(),
                     [&](const auto& one) { return one.name == schedule; });
}

// How many of the pipeline's `stages` this process runs.
int own_stages(const PipelineOptions& options, int stages) {
  if (!options.group.valid()) return stages;
  if (!options.plan.table) return stages_per_rank(options);
  const auto& ranks = options.plan.table->rank_of_stage;
  return static_cast<int>(std::count(ranks.begin(), ranks.end(), options.group.rank()));
}

void check_optimizer(const PipelineOptions& options, Mistakes& mistakes) {
  if (!options.optimizer.make && options.optimizer.clip_grad_norm != 0)
    mistakes.push_back(text("clip_grad_norm = ", options.optimizer.clip_grad_norm,
                            " without 'optimizer.make': nothing would be clipped; call "
                            "Pipeline::clip_grad_norm() before your optimizer's step"));
  try {
    optim::check_clipping(options.optimizer.clip_grad_norm, {.p = options.optimizer.clip_p});
  } catch (const UsageError& error) {
    mistakes.emplace_back(error.what());
  }
  if (!options.optimizer.make || !options.plan.table) return;
  const auto& used = options.plan.table->rank_of_stage;
  for (int rank = 0; rank < options.plan.table->rank_count(); ++rank)
    if (std::find(used.begin(), used.end(), rank) == used.end())
      mistakes.push_back(text("rank ", rank,
                              " of the given table has no stage: with 'optimizer' "
                              "every rank needs gradients for the norm"));
}

void check_micro_batches(const PipelineOptions& options, Mistakes& mistakes) {
  const int size = options.plan.split_size;
  if (options.micro_batches < 1)
    mistakes.push_back(text("micro_batches = ", options.micro_batches, " is not at least 1"));
  if (options.checkpoint_segments < 0)
    mistakes.push_back(text("checkpoint_segments = ", options.checkpoint_segments,
                            " is negative; 0 keeps all activations"));
  if (size < 0) mistakes.push_back(text("split_size = ", size, " is negative"));
  if (options.micro_batches > 1 && size > 0)
    mistakes.push_back(text("micro_batches = ", options.micro_batches, " and split_size = ", size,
                            " are both given: set the number of micro-batches, or the samples of "
                            "one"));
}

void check_cores_and_memory(const PipelineOptions& options, Mistakes& mistakes) {
  if (options.deadline.count() <= 0)
    mistakes.push_back(text("deadline = ", options.deadline.count(), " ms is not positive"));
  const int threads = options.cores.threads;
  if (threads < 0 || threads > most_threads())
    mistakes.push_back(text("threads = ", threads, " is not 0 (chosen) to ", most_threads()));
  const at::MemoryFormat format = options.numerics.memory_format;
  if (format != at::MemoryFormat::Preserve && format != at::MemoryFormat::Contiguous &&
      format != at::MemoryFormat::ChannelsLast)
    mistakes.push_back(
        text("memory_format = ", format, " is not Preserve, Contiguous or ChannelsLast"));
}

bool has_device_of_each_rank(const PipelineOptions& options, int stages) {
  const int ranks =
      options.plan.table ? options.plan.table->rank_count() : stages / stages_per_rank(options);
  return !options.group.valid() && static_cast<int>(options.devices.size()) == ranks;
}

void check_devices(const PipelineOptions& options, int stages, Mistakes& mistakes) {
  const int here = own_stages(options, stages);
  if (options.devices.size() == 1 || static_cast<int>(options.devices.size()) == here ||
      has_device_of_each_rank(options, stages))
    return;
  const int each = stages_per_rank(options);
  const bool several = !options.group.valid() && !options.plan.table && each > 1;
  mistakes.push_back(text(options.group.valid() ? "this rank has " : "balance has ", here,
                          " stages, but ", options.devices.size(),
                          " devices are given; name one device for each stage (a device may be "
                          "listed several times), ",
                          several ? text("one for each rank of ", each, " stages, ") : "",
                          "or one for all"));
}

// A rank is one thread: its stages cannot work on two devices at the same time.
void check_devices_of_ranks(const PipelineOptions& options, int stages, Mistakes& mistakes) {
  const int each = stages_per_rank(options);
  if (each == 1 || options.group.valid() || stages % each != 0 ||
      static_cast<int>(options.devices.size()) != stages)
    return;
  const std::vector<int> ranks = ranks_of_stages(options);
  for (int stage = 0; stage < stages; ++stage) {
    const auto first = std::find(ranks.begin(), ranks.end(), ranks[stage]) - ranks.begin();
    const Device &one = options.devices[first], &other = options.devices[stage];
    if (one.torch == other.torch) continue;
    mistakes.push_back(text("schedule '", options.schedule, "' has ", each,
                            " stages on each rank, but stages ", first, " and ", stage, " of rank ",
                            ranks[stage], " are on ", device_name(one.torch), " and ",
                            device_name(other.torch), "; for a rank on each of the ", stages,
                            " devices the balance has ", each * stages, " stages"));
    return;
  }
}

void check_placement(const PipelineOptions& options, Mistakes& mistakes) {
  if (options.stages_per_rank < 0)
    mistakes.push_back(text("stages_per_rank = ", options.stages_per_rank,
                            " is negative; 0 is what the schedule needs"));
  if (options.plan.table && options.stages_per_rank > 0)
    mistakes.push_back(text("stages_per_rank = ", options.stages_per_rank,
                            " and plan.table are both given: the table has a rank for each stage"));
  if (options.plan.table || options.stages_per_rank < 0 || !is_known(options.schedule)) return;
  try {
    ranks_of_stages(options);
    check_devices_of_ranks(options, stage_count(options), mistakes);
  } catch (const UsageError& error) {
    mistakes.emplace_back(error.what());
  }
}

void check_stages(const PipelineOptions& options, int layers, Mistakes& mistakes) {
  try {
    choose("schedule", options.schedule, schedule::known_schedules());
  } catch (const UsageError& error) {
    mistakes.emplace_back(error.what());
  }
  const int stages = stage_count(options);
  if (!options.balance.empty()) {
    for (auto& mistake : balance_mistakes(options.balance, layers))
      mistakes.push_back(std::move(mistake));
  }
  if (stages > layers) {
    mistakes.push_back(text("a model of ", layers, " layers cannot be cut into ", stages,
                            " stages; use at most one stage a layer"));
  }
  check_placement(options, mistakes);
  check_devices(options, stages, mistakes);
  const auto& modes = options.plan.recompute_per_stage;
  if (!modes.empty() && static_cast<int>(modes.size()) != stages) {
    mistakes.push_back(text("recompute_per_stage has ", modes.size(), " entries, the pipeline ",
                            stages, " stages"));
  }
  if (options.plan.table) check_table(*options.plan.table, stages, mistakes);
}

}  // namespace

int stage_count(const PipelineOptions& options) {
  if (!options.balance.empty()) return static_cast<int>(options.balance.size());
  if (options.plan.table) return options.plan.table->stages;
  const int ranks =
      options.group.valid() ? options.group.size() : static_cast<int>(options.devices.size());
  return ranks * stages_per_rank(options);
}

int stages_per_rank(const PipelineOptions& options) {
  return schedule::stages_per_rank(options.schedule, options.stages_per_rank);
}

std::vector<int> ranks_of_stages(const PipelineOptions& options) {
  if (options.plan.table) return options.plan.table->rank_of_stage;
  return schedule::ranks_of_stages(options.schedule, stage_count(options),
                                   stages_per_rank(options));
}

int rank_count(const PipelineOptions& options) {
  return options.plan.table ? options.plan.table->rank_count()
                            : stage_count(options) / stages_per_rank(options);
}

std::vector<Device> devices_of_stages(const PipelineOptions& options) {
  const auto stages = static_cast<std::size_t>(stage_count(options));
  if (options.devices.size() == 1 || options.devices.size() == stages || options.group.valid())
    return options.devices;
  std::vector<Device> devices;
  for (const int rank : ranks_of_stages(options))
    devices.push_back(options.devices.at(static_cast<std::size_t>(rank)));
  return devices;
}

void check_options(const PipelineOptions& options, int layers) {
  Mistakes mistakes;
  check_micro_batches(options, mistakes);
  check_cores_and_memory(options, mistakes);
  check_stages(options, layers, mistakes);
  check_optimizer(options, mistakes);
  if (mistakes.empty()) return;
  if (mistakes.size() == 1) throw UsageError(mistakes[0]);
  throw UsageError(text("the pipeline's options have ", mistakes.size(), " mistakes:\n  - ",
                        join(mistakes, "\n  - ")));
}

}  // namespace trestle::pipeline
