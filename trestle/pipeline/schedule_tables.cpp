#include "trestle/pipeline/schedule_tables.h"

#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/pipeline/options.h"
#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lend_cores.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/schedule/placement.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

namespace trestle::pipeline {
namespace {

// Replicas reduce a stage's gradients while its last backward runs. The owner of a tied parameter
// therefore takes its copies' gradients before that, and their stages may need the owner's rank
// until later. Throws UsageError if the ranks would wait for each other.
void check_ties(const schedule::Schedule& table, const Cut& cut) {
  simulate::Costs costs;
  costs.stages.resize(cut.stages.size());
  costs.routes.resize(table.routes.size());
  for (const StageTie& tie : cut.ties)
    costs.ties.push_back({.owner = tie.route.from_stage, .copy = tie.route.to_stage});
  try {
    simulate::simulate(table, costs);
  } catch (const UsageError& error) {
    throw UsageError(
        text("replicas reduce the gradient of a tied parameter before its copies' stages can send "
             "theirs: ",
             error.std::runtime_error::what()),
        {.hint = "Take another schedule or fewer stages on each rank, or cut the model so that the "
                 "layers of a tie are in one stage."});
  }
}

}  // namespace

const schedule::Schedule& ScheduleTables::get(const TableRequest& request) {
  const std::lock_guard lock(mutex_);
  auto& table = tables_[request];
  if (table.stages > 0) return table;
  schedule::Schedule made = lower(request.micro_batches, request.schedule,
                                  request.recompute ? recompute_modes() : std::vector<Recompute>());
  if (request.updates) made = schedule::add_optimizer_steps(std::move(made));
  if (options_.replicas.hooks && !model_.cut.ties.empty()) check_ties(made, model_.cut);
  return table = std::move(made);
}

std::vector<Recompute> ScheduleTables::recompute_modes() const {
  if (!options_.plan.recompute_per_stage.empty()) return options_.plan.recompute_per_stage;
  return std::vector<Recompute>(model_.cut.stages.size(), options_.recompute);
}

bool ScheduleTables::lends_cores() const {
  return options_.cores.lending == CoreLending::On && model_.can_lend_cores;
}

bool ScheduleTables::splits_backward() const {
  if (options_.plan.table) return schedule::splits_backward(*options_.plan.table);
  return choose("schedule", options_.schedule, schedule::known_schedules()).splits_backward;
}

// A user's own table covers one number of micro-batches, and some schedules not all of them. All
// other numbers run GPipe on the same ranks.
schedule::Schedule ScheduleTables::compute_actions(int micro_batches,
                                                   const std::string& name) const {
  const auto& own = options_.plan.table;
  schedule::GenerateOptions sizes{.stages = static_cast<int>(model_.cut.stages.size()),
                                  .micro_batches = micro_batches,
                                  .backward_order = options_.plan.backward_order};
  if (name == options_.schedule) {
    if (own && own->micro_batches == micro_batches) return *own;
    if (!own) {
      sizes.stages_per_rank = stages_per_rank(options_);
      try {
        return schedule::generate(name, sizes);
      } catch (const UsageError&) {
        if (micro_batches == options_.micro_batches && options_.plan.split_size == 0) throw;
      }
      sizes.stages_per_rank = 1;
    }
  }
  return schedule::place(schedule::generate("gpipe", sizes), ranks_of_stages(options_),
                         rank_count(options_));
}

schedule::Schedule ScheduleTables::lower(int micro_batches, const std::string& name,
                                         const std::vector<Recompute>& modes) const {
  schedule::Schedule table = schedule::lower(compute_actions(micro_batches, name),
                                             {.routes = model_.cut.routes, .recompute = modes});
  if (lends_cores())
    table =
        schedule::lend_cores(table, {.all = core_count(), .each_rank = model_.executor.threads()});
  return options_.replicas.hooks ? schedule::add_reductions(std::move(table)) : table;
}

}  // namespace trestle::pipeline
