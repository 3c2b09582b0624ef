#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trestle/comm/group.h"
#include "trestle/pipeline/execute/partitioned_model.h"
#include "trestle/pipeline/pipeline_options.h"
#include "trestle/pipeline/transport/rank_link.h"
#include "trestle/schedule/schedule.h"

// The agreement of the ranks of a pipeline when it is made.
namespace trestle::pipeline {

// Layers, seeds, options and table, a line each: the facts that must be the same on all ranks of a
// pipeline, and on ranks that split its layers.
std::string describe_pipeline(const PipelineOptions& options, const nn::Graph& graph,
                              const schedule::Schedule& table);

// The rank of the first stage.
int first_rank(const PipelineOptions& options);

// Throws UsageError unless each rank of the group gets a stage.
void check_group_size(const PipelineOptions& options);

// Runs `check` on all ranks. If it throws on one of them, the other ranks throw RankError. The
// world does not fail: where all ranks throw, the program may try other options. If the group is
// not valid, it only runs `check`.
void check_on_all_ranks(const comm::Group& group, const std::function<void()>& check);

// Compares the ranks' models, options and tables, and connects the ranks. Throws UsageError, the
// same on all ranks, that lists the differences; and where two ranks of one process share a device.
std::shared_ptr<RankLink> connect_ranks(const PipelineOptions& options,
                                        const PartitionedModel& model,
                                        const schedule::Schedule& table);

}  // namespace trestle::pipeline
