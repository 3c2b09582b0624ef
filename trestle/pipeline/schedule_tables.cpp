#include "trestle/pipeline/schedule_tables.h"

#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/device/threads.h"
#include "trestle/pipeline/options.h"
#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lend_cores.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/schedule/placement.h"
#include "trestle/schedule/validate.h"

namespace trestle::pipeline {

const schedule::Schedule& ScheduleTables::get(const TableRequest& request) {
  const std::lock_guard lock(mutex_);
  auto& table = tables_[request];
  if (table.stages > 0) return table;
  table = lower(request.micro_batches, request.schedule,
                request.recompute ? recompute_modes() : std::vector<Recompute>());
  if (request.updates) table = schedule::add_optimizer_steps(std::move(table));
  return table;
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
