#include "trestle/train/validator.h"

#include <c10/core/GradMode.h>

namespace trestle::train {

namespace {

at::Tensor in_float(const at::Tensor& output) {
  const bool half = output.scalar_type() == at::kBFloat16 || output.scalar_type() == at::kHalf;
  return half ? output.to(at::kFloat) : output;
}

bool sees_all_rows(const Task& task, const AllRows& all_rows) {
  return all_rows && task.loss.kind == nn::Loss::Kind::WholeBatch;
}

}  // namespace

double weight_of(const Task& task, const data::Batch& batch) {
  const bool additive = task.loss.kind == nn::Loss::Kind::Additive;
  return additive ? task.loss.weight(batch.targets) : static_cast<double>(batch.size());
}

at::Tensor Scores::add(Pipeline& pipeline, const Task& task, const data::Batch& batch,
                          const AllRows& all_rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor raw = pipeline.evaluate(batch.inputs);
  if (!raw.defined()) return raw;  // over ranks: it is on the last one
  const at::Tensor output = in_float(raw.to(at::kCPU));
  const double weight = weight_of(task, batch);
  const bool together = sees_all_rows(task, all_rows);
  const at::Tensor outputs = together ? all_rows(output) : output;
  const at::Tensor targets = together ? all_rows(batch.targets) : batch.targets;
  // Where nothing counts, a mean over what counts is 0 / 0.
  if (weight > 0) loss += {task.loss.value(outputs, targets).item<double>() * weight, weight};
  metric += task.metric(output, batch.targets);
  return output;
}

void Scores::add_nothing(const Task& task, const AllRows& all_rows) {
  if (!sees_all_rows(task, all_rows)) return;
  all_rows({});  // of outputs
  all_rows({});  // of targets
}

}  // namespace trestle::train
