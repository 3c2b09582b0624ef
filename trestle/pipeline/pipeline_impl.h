#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "trestle/comm/fail_on_error.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/gradient_norms.h"
#include "trestle/pipeline/mini_batch_state.h"
#include "trestle/pipeline/partitioned_model.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/pipeline/rank_link.h"
#include "trestle/pipeline/stage_exchange.h"
#include "trestle/pipeline/stage_optimizers.h"

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
  // over_ranks.cpp
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& norm);
  double grad_norm(double p);
  schedule::Timeline gather_timeline() const;
  Bytes bytes_sent() const { return link_ ? link_->bytes_sent() : 0; }
  void backward(const at::Tensor& loss);  // of the last forward(), where the last stage is not
  void set_mode(pipeline::StepPlan::Mode mode);
  simulate::Costs profile(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss);

  // The lowered table for so many micro-batches.
  const schedule::Schedule& lowered(int micro_batches, const std::string& name, bool recompute,
                                    bool updates = false);
  // Made at the first call. Throws StateError where the options have none.
  const std::shared_ptr<pipeline::StageOptimizers>& optimizers();

  std::int64_t step_number() const;
  void set_step_number(std::int64_t step);
  void remember_costs(simulate::Costs costs);
  std::string suggest() const;  // what would make a step fit
  // As many micro-batches as the profiled mini-batch is cut into; 0 where that is not known yet.
  int planned_micro_batches() const;
  bool lends_cores() const;  // StateError before the model is cut

  bool over_ranks() const { return options.group.valid(); }
  void check_inputs(const nn::Values& inputs) const;
  // The first rank's sizes of a mini-batch's pieces, once all ranks have said that they make this call.
  std::vector<std::int64_t> micro_batch_sizes(pipeline::StepPlan plan, const nn::Values& batch);
  // For a call that has begun so, of so many pieces.
  pipeline::StageExchange stage_exchange(std::size_t micro_batches);
  // Runs what all ranks do together: what goes wrong on one is told to all.
  template <class Call>
  auto together(const Call& call) {
    if (!over_ranks()) return call();
    return comm::fail_on_error(options.group, call);
  }

  nn::Layers model;
  PipelineOptions options;

 private:
  void backward_of(const at::Tensor& loss);
  nn::Values prepared(const nn::Values& batch) const;
  std::vector<nn::Values> split(const nn::Values& batch) const;
  void cut(const std::vector<int>& balance);
  void measure_balance(const nn::Values& batch);
  std::vector<Recompute> recompute_modes() const;
  schedule::Schedule lower(int micro_batches, const std::string& name,
                           const std::vector<Recompute>& recompute) const;
  nn::RunKey next_key(std::int64_t first_micro_batch = 0);
  nn::RunKey next_evaluation_key();
  std::shared_ptr<pipeline::MiniBatchState> begin_step(pipeline::StepInputs inputs,
                                                       const nn::Values& batch);

  int first_rank() const;  // that of the first stage
  // Over ranks: what is wrong on one of them the others are told, who would wait for it otherwise.
  void each_checks(const std::function<void()>& check) const;
  void check_ranks() const;
  void join_ranks();
  void check_first_input(const nn::Values& batch) const;
  void check_given(const nn::Values& batch, std::uint64_t given) const;
  std::uint64_t given_inputs(const nn::Values& batch) const;
  std::vector<optim::GradientNorm> all_gradient_norms(double max_norm,
                                                      const optim::ClipGradNormOptions& norm);
  void share_budgets();

  std::unique_ptr<pipeline::StageTransport> transport(const schedule::Schedule& table) const;

  std::shared_ptr<pipeline::PartitionedModel> parts_;
  std::shared_ptr<pipeline::RankLink> link_;  // over ranks, once the model is cut
  // Over ranks, where the last stage is elsewhere: what the caller's backward() will need.
  struct WaitingBackward {
    nn::Values given;
    std::shared_ptr<pipeline::MiniBatchState> state;
  };
  std::optional<WaitingBackward> waiting_;
  pipeline::StepPlan::Mode mode_ = pipeline::StepPlan::Mode::AsMade;
  mutable std::mutex mutex_;
  // By micro-batches, schedule, whether it recomputes, whether it has NORM and STEP.
  std::map<std::tuple<int, std::string, bool, bool>, schedule::Schedule> tables_;
  std::shared_ptr<pipeline::StageOptimizers> optimizers_;
  std::int64_t step_number_ = 0;
  std::int64_t evaluations_ = 0;  // since the step number changed
  simulate::Costs costs_;
  int samples_ = 0;             // of the mini-batch that was profiled
  std::vector<Bytes> budgets_;  // over ranks, as it was profiled: of each stage's device, 0 = none
};

}  // namespace trestle
