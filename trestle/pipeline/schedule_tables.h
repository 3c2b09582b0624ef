#pragma once

#include <compare>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trestle/pipeline/execute/partitioned_model.h"
#include "trestle/pipeline/pipeline_options.h"
#include "trestle/schedule/schedule.h"

namespace trestle::pipeline {

// Which table a run needs.
struct TableRequest {
  int micro_batches = 1;
  std::string schedule = {};
  bool recompute = true;  // by the modes of the options; false: nothing is recomputed
  bool updates = false;   // with NORM and STEP

  friend auto operator<=>(const TableRequest&, const TableRequest&) = default;
};

// The lowered tables of a pipeline that has been cut. Each is made once. Several threads may use
// them.
class ScheduleTables {
 public:
  // Keeps references to both.
  ScheduleTables(const PipelineOptions& options, const PartitionedModel& model)
      : options_(options), model_(model) {}

  const schedule::Schedule& get(const TableRequest& request);

  // A lowered table with the options' schedule and these modes, one a stage; empty = nothing is
  // recomputed. It has no NORM and STEP.
  schedule::Schedule lower(int micro_batches, const std::vector<Recompute>& modes) const {
    return lower(micro_batches, options_.schedule, modes);
  }

  std::vector<Recompute> recompute_modes() const;  // [stage]
  bool lends_cores() const;
  // Whether the schedule, or the user's table, has I and W.
  bool splits_backward() const;

 private:
  schedule::Schedule compute_actions(int micro_batches, const std::string& name) const;
  schedule::Schedule lower(int micro_batches, const std::string& name,
                           const std::vector<Recompute>& modes) const;

  const PipelineOptions& options_;
  const PartitionedModel& model_;
  std::mutex mutex_;
  std::map<TableRequest, schedule::Schedule> tables_;
};

}  // namespace trestle::pipeline
