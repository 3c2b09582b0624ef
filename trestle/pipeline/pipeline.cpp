#include "trestle/pipeline/pipeline.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/pipeline_impl.h"
#include "trestle/simulate/simulate.h"

namespace trestle {
namespace {

at::Tensor only_output(const nn::Values& outputs, const char* call) {
  if (outputs.size() != 1)
    throw UsageError(text("the model returns ", outputs.size(), " tensors: call ", call));
  return outputs[0];
}

}  // namespace

Pipeline::Pipeline(const nn::Layers& model, PipelineOptions options)
    : impl_(std::make_shared<Impl>(model, std::move(options))) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

StepResult Pipeline::step(const at::Tensor& input, const at::Tensor& target, const nn::Loss& loss,
                          StepOptions options) {
  return impl_->together([&] { return impl_->step({input}, target, loss, options); });
}
StepResult Pipeline::step(const nn::Values& inputs, const at::Tensor& target, const nn::Loss& loss,
                          StepOptions options) {
  return impl_->together([&] { return impl_->step(inputs, target, loss, options); });
}

at::Tensor Pipeline::forward(const at::Tensor& input) {
  return only_output(forward(nn::Values{input}), "forward(Values)");
}
nn::Values Pipeline::forward(const nn::Values& inputs) {
  return impl_->together([&] { return impl_->forward(inputs); });
}
void Pipeline::backward(const at::Tensor& loss) {
  impl_->together([&] { impl_->backward(loss); });
}

at::Tensor Pipeline::evaluate(const at::Tensor& input) {
  return only_output(evaluate(nn::Values{input}), "evaluate(Values)");
}
nn::Values Pipeline::evaluate(const nn::Values& inputs) {
  return impl_->together([&] { return impl_->evaluate(inputs); });
}

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> result;
  for (auto& [name, parameter] : named_parameters()) result.push_back(std::move(parameter));
  return result;
}
NamedTensors Pipeline::named_parameters() const {
  if (!impl_->over_ranks()) return impl_->model.named_parameters();
  return impl_->partitioned().named_parameters();
}
nn::ParameterSlices Pipeline::parameter_slices() const {
  return impl_->partitioned().parameter_slices();
}
NamedTensors Pipeline::named_buffers() const {
  if (!impl_->over_ranks()) return impl_->model.named_buffers();
  return impl_->partitioned().named_buffers();
}
std::vector<at::Tensor> Pipeline::stage_parameters(int stage) const {
  check_stage(stage);
  const auto& parts = impl_->partitioned();
  return without_names(pipeline::named_parameters(parts.stages[stage], parts.named_parameters()));
}

double Pipeline::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options) {
  if (impl_->over_ranks() || impl_->is_split()) return impl_->clip_grad_norm(max_norm, options);
  (void)impl_->sliced_parameters();  // refuses slices
  return optim::clip_grad_norm(parameters(), max_norm, options);
}
double Pipeline::grad_norm(double p) const {
  if (impl_->over_ranks() || impl_->is_split()) return impl_->grad_norm(p);
  (void)impl_->sliced_parameters();  // refuses slices
  return optim::grad_norm(parameters(), p);
}
void Pipeline::zero_grad() {
  for (auto& parameter : parameters()) parameter.mutable_grad() = at::Tensor();
}
torch::optim::Optimizer* Pipeline::optimizer(int stage) {
  check_stage(stage);
  impl_->partitioned().stages.place(stage);  // throws for a stage of another rank
  return impl_->optimizers()->find(stage);
}
void Pipeline::train() { impl_->set_mode(pipeline::StepPlan::Mode::Training); }
void Pipeline::eval() { impl_->set_mode(pipeline::StepPlan::Mode::Evaluation); }

std::int64_t Pipeline::step_number() const { return impl_->keys.step_number(); }
void Pipeline::set_step_number(std::int64_t step, std::int64_t examples) {
  impl_->keys.set_step_number(step, examples);
}

int Pipeline::stage_count() const { return impl_->partitioned().stages.count(); }
bool Pipeline::has_stage(int stage) const {
  check_stage(stage);
  return impl_->partitioned().stages.has(stage);
}
bool Pipeline::lends_cores() const { return impl_->tables().lends_cores(); }
const std::vector<int>& Pipeline::balance() const {
  impl_->partitioned();
  return impl_->options.balance;
}
const Device& Pipeline::device(int stage) const {
  check_stage(stage);
  const auto& devices = impl_->options.devices;
  if (devices.size() == 1) return devices[0];
  return devices[static_cast<std::size_t>(impl_->partitioned().stages.place(stage))];
}
nn::Layers& Pipeline::model() { return impl_->model; }
const PipelineOptions& Pipeline::options() const { return impl_->options; }

schedule::Schedule Pipeline::schedule(int micro_batches) const {
  auto& tables = impl_->tables();
  if (micro_batches < 0)
    throw UsageError(text("a schedule for ", micro_batches, " micro-batches cannot be made"));
  const auto& options = impl_->options;
  const int size = options.plan.split_size;
  if (micro_batches == 0)
    micro_batches = size > 0 ? impl_->advisor.planned_micro_batches() : options.micro_batches;
  if (micro_batches == 0)
    throw UsageError(text("split_size = ", size,
                          " does not determine the number of micro-batches: no mini-batch has "
                          "been profiled"),
                     {.hint = "Pass the number, or call profile() first."});
  return tables.get({.micro_batches = micro_batches,
                     .schedule = options.schedule,
                     .updates = options.optimizer.make != nullptr});
}

schedule::Timeline Pipeline::timeline() const { return impl_->partitioned().timeline(); }
schedule::Timeline Pipeline::gather_timeline() const {
  return impl_->over_ranks() ? impl_->gather_timeline() : timeline();
}

Bytes Pipeline::bytes_sent() const { return impl_->bytes_sent(); }

simulate::Costs Pipeline::profile(const nn::Values& inputs, const at::Tensor& target,
                                  const nn::Loss& loss) {
  return impl_->together([&] { return impl_->profile(inputs, target, loss); });
}
void Pipeline::remember_costs(simulate::Costs costs) { impl_->advisor.set_costs(std::move(costs)); }

std::string Pipeline::suggest_fit() const { return impl_->suggest_fit(); }
schedule::Timeline Pipeline::predict(const simulate::Costs& costs, int micro_batches) const {
  return simulate::simulate(
      schedule(micro_batches > 0 ? micro_batches : impl_->advisor.planned_micro_batches()), costs);
}

void Pipeline::check_stage(int stage) const {
  if (stage >= 0 && stage < stage_count()) return;
  throw UsageError(
      text("there is no stage ", stage, ": the pipeline has ", stage_count(), ", counted from 0"));
}

}  // namespace trestle
