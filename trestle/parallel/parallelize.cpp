#include "trestle/parallel/parallelize.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/shared_devices.h"
#include "trestle/device/named_tensors.h"
#include "trestle/gradient_norm/slice_norm.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/gradient_norms.h"
#include "trestle/parallel/stage_replicas.h"
#include "trestle/parallel/tensor_stages.h"
#include "trestle/sharding/sharded_parameters.h"

namespace trestle {
class Parallel::Impl {
 public:
  Impl(const nn::Layers& model, const DeviceMesh& mesh, ParallelOptions given);

  // `describe` returns the call as text.
  template <class Describe>
  void compare(const Describe& describe, const nn::Values& batch) const {
    const auto& tensor = options.tensor_ranks;
    if (!tensor.alone() && tensor.exist() && options.compare_batches == comm::Check::On)
      parallel::refuse_different_calls(tensor, describe(), batch);
  }

  // Modes change the numbers of dropout and of norms.
  std::int64_t modules_in_training() {
    std::int64_t count = 0;
    const nn::Graph graph = pipeline->model().graph();
    for (const nn::Layer& layer : graph.layers) {
      const auto made = layer.module ? layer.module.made() : nullptr;
      if (made == nullptr) continue;
      for (const auto& module : made->modules()) count += module->is_training() ? 1 : 0;
    }
    return count;
  }

  ParallelOptions options;
  std::shared_ptr<parallel::StageReplicas> hooks;  // null where nothing is replicated
  std::optional<Pipeline> pipeline;
  comm::Group stages;  // of the pipeline; not valid where one rank has all stages
  sharding::RankGroups ranks;
  gradient_norm::SlicedParameters sliced;  // over tensor ranks
};

Parallel::Impl::Impl(const nn::Layers& model, const DeviceMesh& mesh, ParallelOptions given)
    : options(std::move(given)) {
  const auto& layout = mesh.layout();
  for (const auto& dimension : layout.dimensions()) {
    if (dimension.name != options.pipeline && dimension.name != options.replicate &&
        dimension.name != options.shard && dimension.name != options.tensor)
      throw UsageError(text("the mesh has a dimension '", dimension.name, "' that is neither '",
                            options.pipeline, "' nor '", options.replicate, "' nor '",
                            options.shard, "' nor '", options.tensor, "'"),
                       {.hint = "Name the dimensions in ParallelOptions."});
  }
  PipelineOptions own = options.options;
  if (layout.has(options.pipeline) && layout.size(options.pipeline) > 1)
    stages = own.group = mesh.group(options.pipeline);
  if (const int size = layout.has(options.tensor) ? layout.size(options.tensor) : 1;
      size != options.tensor_ranks.size())
    throw UsageError(
        text("the mesh has ", size, size == 1 ? " rank" : " ranks", " along '", options.tensor,
             "', and ParallelOptions::tensor_ranks are ", options.tensor_ranks.size()),
        {.hint = "Make tensor_parallel::TensorRanks of the mesh, and give them to the model's "
                 "layers and to ParallelOptions."});
  if (options.tensor_ranks.exist() && options.tensor_ranks.size() > 1 &&
      options.tensor_ranks.group().ranks() != mesh.group(options.tensor).ranks())
    throw UsageError(text("the mesh's ranks along '", options.tensor, "' are ",
                          join(mesh.group(options.tensor).ranks(), ", "),
                          " of the world, and ParallelOptions::tensor_ranks are ",
                          join(options.tensor_ranks.group().ranks(), ", ")),
                     {.hint = "Make tensor_parallel::TensorRanks of this mesh."});
  own.tensor = parallel::tensor_options(options.tensor_ranks);
  const bool has_replicas = layout.has(options.replicate) || layout.has(options.shard);
  const ShardOptions shard{.level = options.level,
                           .reshard_after_forward = options.reshard_after_forward,
                           .unused_parameters = UnusedParameters::Find,
                           .units = options.units,
                           .mesh = {.replicate = options.replicate, .shard = options.shard},
                           .buckets = options.buckets,
                           .shards_on_cpu = options.shards_on_cpu};
  if (has_replicas) {
    ranks = sharding::rank_groups(mesh, shard);
    own.replicas.group = ranks.all;
    own.replicas.hooks = hooks =
        std::make_shared<parallel::StageReplicas>(ranks, shard, options.stage_units);
  }
  pipeline.emplace(model, own);
  const bool splits = options.tensor_ranks.exist();
  if ((hooks || splits) && mesh.world().backend() == "threads") {
    std::vector<at::Device> devices;
    for (int stage = 0; stage < pipeline->stage_count(); ++stage)
      if (pipeline->has_stage(stage)) devices.push_back(pipeline->device(stage).torch);
    if (hooks) comm::refuse_shared_devices(ranks.all, devices, "that share each batch");
    if (splits)
      comm::refuse_shared_devices(options.tensor_ranks.group(), devices, "that split layers");
  }
  if (splits) sliced = parallel::agree_on_slices(*pipeline, stages, options.tensor_ranks);
  if (hooks) hooks->set_sliced(sliced);
  if (hooks) hooks->take_parameters(*pipeline, mesh);
}

Parallel::Parallel(const nn::Layers& model, const DeviceMesh& mesh, ParallelOptions options)
    : impl_(std::make_unique<Impl>(model, mesh, std::move(options))) {}
Parallel::Parallel(Parallel&&) noexcept = default;
Parallel& Parallel::operator=(Parallel&&) noexcept = default;
Parallel::~Parallel() = default;

StepResult Parallel::step(const at::Tensor& input, const at::Tensor& target, const nn::Loss& loss,
                          StepOptions options) {
  impl_->compare(
      [&] {
        return text("step()\nstep number ", impl_->pipeline->step_number(), "\nfirst_micro_batch ",
                    options.first_micro_batch, "\ngradient_scale ", options.gradient_scale,
                    "\nloss ", loss.name, "\nmodules in training ", impl_->modules_in_training(),
                    "\nStepOptions::update ",
                    options.update == StepOptions::Update::Now ? "Now" : "Later", "\n");
      },
      {input, target});
  return impl_->pipeline->step(input, target, loss, options);
}

at::Tensor Parallel::evaluate(const at::Tensor& input) {
  impl_->compare([] { return "evaluate()\n"; }, {input});
  return impl_->pipeline->evaluate(input);
}

NamedTensors Parallel::stage_parameters(int stage) const {
  if (impl_->hooks) return impl_->hooks->stage(stage).named_parameters();
  const auto own = impl_->pipeline->stage_parameters(stage);
  NamedTensors named;
  for (const auto& one : impl_->pipeline->named_parameters())
    for (const auto& tensor : own)
      if (tensor.is_same(one.second)) named.push_back(one);
  return named;
}

NamedTensors Parallel::named_parameters() const {
  NamedTensors all;
  for (int stage = 0; stage < impl_->pipeline->stage_count(); ++stage) {
    if (!impl_->pipeline->has_stage(stage)) continue;
    for (auto& one : stage_parameters(stage)) all.push_back(std::move(one));
  }
  return all;
}

std::vector<at::Tensor> Parallel::parameters() const { return without_names(named_parameters()); }

void Parallel::zero_grad() {
  impl_->pipeline->zero_grad();
  if (impl_->hooks) impl_->hooks->zero_grad();
  for (const auto& [name, tensor] : named_parameters()) tensor.mutable_grad().reset();
}

// The norm of all stages and shards: one small reduction for each dimension.
double Parallel::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& clip) {
  if (impl_->options.level == ShardLevel::None)
    return impl_->pipeline->clip_grad_norm(max_norm, clip);
  optim::check_clipping(max_norm, clip);
  const NamedTensors named = named_parameters();
  const double norm = gradient_norm::norm_over_slices(named, impl_->sliced,
                                                      {impl_->ranks.shard, impl_->stages}, clip.p);
  return optim::clip_by(without_names(named), {{.value = norm, .dtype = at::kDouble}}, max_norm,
                        clip);
}

Pipeline& Parallel::pipeline() { return *impl_->pipeline; }
const Pipeline& Parallel::pipeline() const { return *impl_->pipeline; }

ShardedParameters* Parallel::sharded(int stage) const {
  return impl_->hooks ? &impl_->hooks->stage(stage) : nullptr;
}

int Parallel::replicas() const { return impl_->hooks ? impl_->ranks.all.size() : 1; }
checkpoint::RankSlices Parallel::rank_slices() const {
  return {.parameters = impl_->pipeline->parameter_slices(),
          .writes_whole_tensors = impl_->options.tensor_ranks.rank() == 0};
}
int Parallel::replica() const { return impl_->hooks ? impl_->ranks.all.rank() : 0; }

}  // namespace trestle
