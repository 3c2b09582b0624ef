#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/pipeline/partitioned_model.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/pipeline/step_state.h"

namespace trestle {

// What a Pipeline is made of: its options, the model once it has been cut, and the tables that were
// lowered for it. Several threads may use one pipeline: `mutex_` guards what changes from step to
// step.
class Pipeline::Impl : public std::enable_shared_from_this<Pipeline::Impl> {
 public:
  Impl(const nn::Layers& layers, PipelineOptions given);

  // The balance may have to wait for the first mini-batch.
  pipeline::PartitionedModel& cut_for(const nn::Values& inputs);
  // Throws StateError before that.
  pipeline::PartitionedModel& parts() const;
  std::shared_ptr<pipeline::PartitionedModel> shared_parts() const { return parts_; }

  StepResult step(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss,
                  StepOptions options);
  nn::Values forward(const nn::Values& inputs);
  nn::Values evaluate(const nn::Values& inputs);
  simulate::Costs profile(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss);

  // The lowered table for so many micro-batches.
  const schedule::Schedule& lowered(int micro_batches, const std::string& name, bool recompute);

  std::int64_t step_number() const;
  void set_step_number(std::int64_t step);
  void remember_costs(simulate::Costs costs);
  std::string suggest() const;  // what would make a step fit
  // As many micro-batches as the profiled mini-batch is cut into; 0 where that is not known yet.
  int planned_micro_batches() const;
  bool lends_cores() const;  // StateError before the model is cut

  nn::Layers model;
  PipelineOptions options;

 private:
  nn::Values prepared(const nn::Values& batch) const;
  std::vector<nn::Values> split(const nn::Values& batch) const;
  void check_inputs(const nn::Values& inputs) const;
  void cut(const std::vector<int>& balance);
  void measure_balance(const nn::Values& batch);
  std::vector<Recompute> recompute_modes() const;
  schedule::Schedule lower(int micro_batches, const std::string& name,
                           const std::vector<Recompute>& recompute) const;
  nn::RunKey next_key(std::int64_t first_micro_batch = 0);
  nn::RunKey next_evaluation_key();
  std::shared_ptr<pipeline::StepState> begin_step(pipeline::StepInputs inputs,
                                                  const nn::Values& batch);

  std::shared_ptr<pipeline::PartitionedModel> parts_;
  mutable std::mutex mutex_;
  std::map<std::tuple<int, std::string, bool>, schedule::Schedule> tables_;
  std::int64_t step_number_ = 0;
  std::int64_t evaluations_ = 0;  // since the step number changed
  simulate::Costs costs_;
  int samples_ = 0;  // of the mini-batch that was profiled
};

}  // namespace trestle
