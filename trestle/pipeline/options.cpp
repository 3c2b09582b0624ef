#include "trestle/pipeline/options.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/optim/gradient_norms.h"
#include "trestle/pipeline/cut.h"
#include "trestle/pipeline/executor.h"

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
      if (!allowed_in_user_table(action.kind)) unknown.insert(schedule::to_string(action));
    }
  }
  if (unknown.empty()) return;
  const std::size_t shown = std::min<std::size_t>(unknown.size(), 3);
  mistakes.push_back(text(
      "the given table has actions that the pipeline cannot carry out: ",
      join(std::vector(unknown.begin(), std::next(unknown.begin(), shown)), ", "),
      shown < unknown.size() ? ", ..." : "",
      "; it runs F and B, and the sends, receives, recomputations, norms and steps that are added "
      "to them"));
}

// Of the pipeline's `stages`, those that this process runs.
int own_stages(const PipelineOptions& options, int stages) {
  if (!options.group.valid()) return stages;
  if (!options.table) return 1;
  const auto& ranks = options.table->rank_of_stage;
  return static_cast<int>(std::count(ranks.begin(), ranks.end(), options.group.rank()));
}

void check_optimizer(const PipelineOptions& options, Mistakes& mistakes) {
  if (!options.optimizer && options.clip_grad_norm != 0)
    mistakes.push_back(text("clip_grad_norm = ", options.clip_grad_norm,
                            " without 'optimizer': nothing would be clipped; call "
                            "Pipeline::clip_grad_norm() before your optimizer's step"));
  try {
    optim::check_clipping(options.clip_grad_norm, {.p = options.clip_p});
  } catch (const UsageError& error) {
    mistakes.emplace_back(error.what());
  }
  if (!options.optimizer || !options.table) return;
  const auto& used = options.table->rank_of_stage;
  for (int rank = 0; rank < options.table->rank_count(); ++rank)
    if (std::find(used.begin(), used.end(), rank) == used.end())
      mistakes.push_back(text("rank ", rank,
                              " of the given table has no stage: with 'optimizer' "
                              "every rank has a part in the norm of the gradients"));
}

}  // namespace

int stage_count(const PipelineOptions& options) {
  if (!options.balance.empty()) return static_cast<int>(options.balance.size());
  if (options.group.valid()) return options.table ? options.table->stages : options.group.size();
  return static_cast<int>(options.devices.size());
}

void check_options(const PipelineOptions& options, int layers) {
  Mistakes mistakes;
  if (options.micro_batches < 1)
    mistakes.push_back(text("micro_batches = ", options.micro_batches, " is not at least 1"));
  if (options.split_size < 0)
    mistakes.push_back(text("split_size = ", options.split_size, " is negative"));
  if (options.micro_batches > 1 && options.split_size > 0)
    mistakes.push_back(text("micro_batches = ", options.micro_batches,
                            " and split_size = ", options.split_size,
                            " are both given: say how many pieces a batch is cut into, or how many "
                            "samples a piece has"));
  if (options.deadline.count() <= 0)
    mistakes.push_back(text("deadline = ", options.deadline.count(), " ms is not positive"));
  if (options.threads < 0 || options.threads > most_threads())
    mistakes.push_back(
        text("threads = ", options.threads, " is not 0 (chosen) to ", most_threads()));
  if (options.memory_format != at::MemoryFormat::Preserve &&
      options.memory_format != at::MemoryFormat::Contiguous &&
      options.memory_format != at::MemoryFormat::ChannelsLast)
    mistakes.push_back(text("memory_format = ", options.memory_format,
                            " is not Preserve, Contiguous or ChannelsLast"));
  try {
    schedule::generate(options.schedule, {.stages = 1, .micro_batches = 1});
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
  const int here = own_stages(options, stages);
  if (options.devices.size() != 1 && static_cast<int>(options.devices.size()) != here) {
    mistakes.push_back(text(options.group.valid() ? "this rank has " : "balance has ", here,
                            " stages, but ", options.devices.size(),
                            " devices are given; name one device for each stage (one may stand "
                            "several times), or a single one for all"));
  }
  const auto& modes = options.recompute_per_stage;
  if (!modes.empty() && static_cast<int>(modes.size()) != stages) {
    mistakes.push_back(text("recompute_per_stage has ", modes.size(), " entries, the pipeline ",
                            stages, " stages"));
  }
  if (options.table) check_table(*options.table, stages, mistakes);
  check_optimizer(options, mistakes);
  if (mistakes.empty()) return;
  if (mistakes.size() == 1) throw UsageError(mistakes[0]);
  throw UsageError(text("the pipeline's options have ", mistakes.size(), " mistakes:\n  - ",
                        join(mistakes, "\n  - ")));
}

}  // namespace trestle::pipeline
