#include "trestle/sharding/sharded.h"

#include <torch/nn/module.h>

#include "trestle/base/error.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/engine/full_state.h"
#include "trestle/sharding/sharded_impl.h"

namespace trestle {

Sharded::Sharded(const nn::Layers& model, const DeviceMesh& mesh, const ShardOptions& options)
    : impl_(std::make_shared<Impl>(model, mesh, options)) {}
Sharded::Sharded(std::shared_ptr<torch::nn::Module> model, const DeviceMesh& mesh,
                 const ShardOptions& options)
    : impl_(std::make_shared<Impl>(std::move(model), mesh, options)) {}
Sharded::Sharded(Sharded&&) noexcept = default;
Sharded& Sharded::operator=(Sharded&&) noexcept = default;
Sharded::~Sharded() = default;

const std::shared_ptr<Sharded::Impl>& Sharded::pointer() const {
  if (impl_) return impl_;
  throw StateError("this Sharded was moved from", {.hint = "Use the object it was moved to."});
}
Sharded::Impl& Sharded::impl() const { return *pointer(); }
sharding::ShardEngine& Sharded::engine() const { return impl().engine(); }

sharding::ShardEngine& Sharded::engine_outside_of_join(const char* call) const {
  impl().check_outside_of_join(call);
  return engine();
}

nn::Values Sharded::forward(nn::Values inputs) { return impl().forward(std::move(inputs)); }

at::Tensor Sharded::forward(const at::Tensor& input) {
  nn::Values outputs = impl().forward({input});
  if (outputs.size() == 1) return outputs[0];
  throw UsageError("the model returns more than one tensor",
                   {.hint = "Call forward({input}), which returns them all."});
}

Sharded::Scope Sharded::begin(const std::function<void(const Change&)>& inputs) {
  return impl().begin(inputs);
}

void Sharded::end(const Scope& scope, const std::function<void(const Change&)>& outputs) {
  impl().end(scope, outputs);
}

void Sharded::backward(const at::Tensor& loss, std::optional<double> weight) {
  impl().backward(loss, weight);
}

void Sharded::backward_without_samples() { impl().backward_without_samples(); }
std::vector<int> Sharded::own_micro_batches() const { return impl().own_micro_batches(); }
Sharded::NoSync Sharded::no_sync() { return NoSync(pointer()); }
std::vector<at::Tensor> Sharded::parameters() const { return without_names(engine().stepped()); }
NamedTensors Sharded::named_parameters() const { return engine().stepped(); }
void Sharded::zero_grad() { engine().zero_grad(); }

double Sharded::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options) {
  return impl().clip_grad_norm(max_norm, options);
}

void Sharded::refuse_slices(const char* call) { impl().refuse_slices(call); }

const comm::Group& Sharded::shard_ranks() const { return engine().ranks().shard; }

Sharded::Unsharded Sharded::unshard() {
  engine_outside_of_join("unshard()").agree(sharding::RankHandshake::Call::Unshard);
  return Unsharded(impl().engine_pointer());
}

NamedTensors Sharded::state() {
  auto& engine = engine_outside_of_join("state()");
  engine.agree(sharding::RankHandshake::Call::State);
  return sharding::full_state(engine);
}

void Sharded::load_state(const NamedTensors& state) {
  sharding::load_full_state(engine_outside_of_join("load_state()"), state);
}

void Sharded::shards_changed() { engine().shards_changed(); }
const ShardOptions& Sharded::options() const { return engine().options(); }
ShardReport Sharded::report() const { return engine().report(); }
void Sharded::start_recording() { engine().start_recording(); }
ShardRecord Sharded::stop_recording() { return engine().stop_recording(); }
ShardProgress Sharded::progress() const { return impl().progress(); }
void Sharded::set_progress(const ShardProgress& progress) { impl().set_progress(progress); }
std::string Sharded::description() const { return impl().description(); }

Sharded::NoSync::NoSync(const std::shared_ptr<Impl>& impl) : impl_(impl) { impl->hold_sync(1); }
Sharded::NoSync::NoSync(NoSync&& other) noexcept : impl_(std::exchange(other.impl_, {})) {}
Sharded::NoSync::~NoSync() {
  if (const auto impl = impl_.lock()) impl->hold_sync(-1);
}

}  // namespace trestle
