#include "trestle/train/validator.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"
#include "trestle/train/batch_stream.h"

namespace trestle::train {

namespace {

at::Tensor in_float(const at::Tensor& output) {
  const bool half = output.scalar_type() == at::kBFloat16 || output.scalar_type() == at::kHalf;
  return half ? output.to(at::kFloat) : output;
}

bool needs_all_rows(const Task& task, const AllRows& all_rows) {
  return all_rows && task.loss.kind == nn::Loss::Kind::WholeBatch;
}

}  // namespace

double weight_of(const Task& task, const data::Batch& batch) {
  const bool additive = task.loss.kind == nn::Loss::Kind::Additive;
  return additive ? task.loss.weight(batch.targets) : static_cast<double>(batch.size());
}

void check_metric(const Task& task, const at::Tensor& output, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(
        text("'metric' in [train]: ", task.metric_name, " cannot rate the output of the model:\n  ",
             why),
        {.hint = "Choose another 'metric'. If none fits, keep no data for validation: for "
                 "example --validation 0."});
  };
  try {
    task.metric(in_float(output.to(at::kCPU)), target);
  } catch (const UsageError& error) {
    refuse(error.what());
  } catch (const c10::Error& error) {
    refuse(error.what_without_backtrace());
  }
}

at::Tensor Scores::add(Pipeline& pipeline, const Task& task, const data::Batch& batch,
                       const AllRows& all_rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor raw = pipeline.evaluate(batch.inputs);
  if (!raw.defined()) return raw;  // over ranks the last one has it
  const at::Tensor output = in_float(raw.to(at::kCPU));
  const double weight = weight_of(task, batch);
  const bool joined = needs_all_rows(task, all_rows);
  const at::Tensor outputs = joined ? all_rows(output) : output;
  const at::Tensor targets = joined ? all_rows(batch.targets) : batch.targets;
  // A mean over a weight of 0 would be 0 / 0.
  if (weight > 0) loss += {task.loss.value(outputs, targets).item<double>() * weight, weight};
  metric += task.metric(output, batch.targets);
  return output;
}

void Scores::add_nothing(const Task& task, const AllRows& all_rows) {
  if (!needs_all_rows(task, all_rows)) return;
  all_rows({});  // outputs
  all_rows({});  // targets
}

Validator::Validator(const RunRanks& ranks, const Task& task, std::int64_t batch,
                     Pipeline& pipeline, parallel::StageReplicas* replicas)
    : ranks_(ranks), task_(task), batch_(batch), pipeline_(pipeline), replicas_(replicas) {
  if (ranks.replicas() > 1)
    all_rows_ = [&ranks](const at::Tensor& rows) { return ranks.all_rows(rows); };
}

std::optional<Scores> Validator::run(const std::function<Next(const Batch&)>& after_batch) {
  Scores own, all;
  BatchStream batches(*task_.validation, 0, 0, ranks_.reads(), ranks_.share());
  std::int64_t done = 0, examples = 0;
  while (const std::optional<data::Batch> batch = batches.next()) {
    const at::Tensor output = add(*batch, own);
    all = over_ranks(own);
    examples += ranks_.examples_of(*batch, batch_, *task_.validation);
    if (after_batch({++done, examples, all, *batch, output}) == Next::Stop) return std::nullopt;
  }
  return all;
}

at::Tensor Validator::add(const data::Batch& batch, Scores& own) {
  const std::int64_t examples = ranks_.examples_of(batch, batch_, *task_.validation);
  if (ranks_.replicas() == 1 || ranks_.share_of(examples) > 0)
    return own.add(pipeline_, task_, batch, all_rows_);
  // A batch of fewer examples than there are replicas leaves some without a share.
  replicas_->evaluate_nothing();
  if (ranks_.is_last()) Scores::add_nothing(task_, all_rows_);
  return {};
}

Scores Validator::over_ranks(const Scores& own) const {
  if (ranks_.alone()) return own;
  const auto sums = comm::with_purpose(
      [] { return "while the ranks added up the loss and metric of the validation"; },
      [&] {
        return ranks_.sum_of_last({own.loss.sum, own.loss.count, own.metric.sum, own.metric.count});
      });
  return {.loss = {sums[0], sums[1]}, .metric = {sums[2], sums[3]}};
}

}  // namespace trestle::train
