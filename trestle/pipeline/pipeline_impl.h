#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/fail_on_error.h"
#include "trestle/nn/layers.h"
#include "trestle/pipeline/execute/callers_backward.h"
#include "trestle/pipeline/execute/partitioned_model.h"
#include "trestle/pipeline/execute/stage_optimizers.h"
#include "trestle/pipeline/fit_advisor.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/pipeline/run_keys.h"
#include "trestle/pipeline/schedule_tables.h"
#include "trestle/pipeline/transport/rank_link.h"
#include "trestle/pipeline/transport/stage_exchange.h"

namespace trestle {

// A pipeline's calls: each prepares a mini-batch, has the executor run a table, and collects the
// results. Several threads may use one pipeline.
class Pipeline::Impl : public std::enable_shared_from_this<Pipeline::Impl> {
 public:
  Impl(const nn::Layers& layers, PipelineOptions given);

  // Cuts the model if that is still to do. `inputs`: a mini-batch to measure a balance with.
  pipeline::PartitionedModel& cut_for(const nn::Values& inputs);
  // Throws StateError before the model is cut.
  pipeline::PartitionedModel& partitioned() const;
  pipeline::ScheduleTables& tables() const;

  StepResult step(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss,
                  const StepOptions& options);
  nn::Values forward(const nn::Values& inputs);
  void backward(const at::Tensor& loss);
  nn::Values evaluate(const nn::Values& inputs);
  simulate::Costs profile(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss);

  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& norm);
  double grad_norm(double p);
  // Made at the first call. Throws StateError if the options have no optimizer.
  const std::shared_ptr<pipeline::StageOptimizers>& optimizers();
  void set_mode(pipeline::StepPlan::Mode mode);

  schedule::Timeline gather_timeline() const;
  Bytes bytes_sent() const { return link_ ? link_->bytes_sent() : 0; }
  std::string suggest_fit() const;

  bool over_ranks() const { return options.group.valid(); }
  bool is_split() const { return options.tensor.group.valid() && options.tensor.group.size() > 1; }
  // The parameters of this rank's stages of which tensor ranks hold slices.
  gradient_norm::SlicedParameters sliced_parameters() const;
  void check_inputs(const nn::Values& inputs) const;
  // The sizes of the micro-batches. Over ranks: those of the first rank, after all ranks have
  // agreed on the call.
  std::vector<std::int64_t> agree_on_sizes(pipeline::StepPlan plan, const nn::Values& batch);
  // For a call that agree_on_sizes() has begun.
  pipeline::StageExchange stage_exchange(std::size_t micro_batches);
  // Runs a call that all ranks make together: an error on one rank ends it on all ranks.
  template <class Call>
  auto together(const Call& call) {
    const comm::Group& ranks = over_ranks() ? options.group : options.tensor.group;
    return ranks.valid() ? comm::fail_on_error(ranks, call) : call();
  }

  nn::Layers model;
  PipelineOptions options;
  pipeline::RunKeys keys;
  pipeline::FitAdvisor advisor;

 private:
  void cut(const std::vector<int>& balance);
  void measure_balance(const nn::Values& batch);
  nn::Values prepare(const nn::Values& batch) const;
  // Alive while layers that other ranks split too are measured.
  std::shared_ptr<void> measured_alone() const;

  // Prepared by step() before it runs the table.
  struct PreparedStep {
    nn::Values batch;  // the model's inputs
    pipeline::StepInputs inputs;
    StepResult result;      // without the loss
    double loss_scale = 1;  // of a scaler
  };
  PreparedStep prepare_step(const nn::Values& given, const at::Tensor& target, const nn::Loss& loss,
                            const StepOptions& step_options);
  std::shared_ptr<pipeline::MiniBatchState> run_step(PreparedStep& prepared);
  void drop_gradients();
  void collect_loss(const pipeline::MiniBatchState& state, StepResult& result);

  std::shared_ptr<pipeline::MiniBatchState> run(pipeline::StepInputs inputs,
                                                const nn::Values& batch, pipeline::Phase phase);
  std::shared_ptr<pipeline::MiniBatchState> run_forwards(pipeline::StepInputs inputs,
                                                         const nn::Values& batch);
  std::unique_ptr<pipeline::StageTransport> transport(const schedule::Schedule& table) const;

  mutable std::mutex mutex_;  // of the cut, which the first mini-batch may make, and of optimizers_
  std::shared_ptr<pipeline::PartitionedModel> parts_;  // null before the cut
  std::unique_ptr<pipeline::ScheduleTables> tables_;   // null before the cut
  std::shared_ptr<pipeline::RankLink> link_;           // over ranks, after the cut
  std::shared_ptr<pipeline::StageOptimizers> optimizers_;
  pipeline::CallersBackward callers_backward_;
  bool gradients_dropped_ = false;  // by the last step, which failed
  pipeline::StepPlan::Mode mode_ = pipeline::StepPlan::Mode::AsMade;
};

}  // namespace trestle
