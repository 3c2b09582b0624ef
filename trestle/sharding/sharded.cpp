#include "trestle/sharding/sharded.h"

#include <torch/nn/module.h>

#include "trestle/base/error.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/sharded_impl.h"

namespace trestle {

Sharded::Sharded(const nn::Layers& model, const DeviceMesh& mesh, const ShardOptions& options)
    : impl_(std::make_shared<Impl>(model, mesh, options)) {}
Sharded::Sharded(std::shared_ptr<torch::nn::Module> model, const DeviceMesh& mesh,
                 const ShardOptions& options)
    : impl_(std::make_shared<Impl>(std::move(model), mesh, options)) {}
Sharded::Sharded(NamedTensors parameters, NamedTensors buffers, const sharding::RankGroups& ranks,
                 const ShardOptions& options)
    : impl_(std::make_shared<Impl>(std::move(parameters), std::move(buffers), ranks, options)) {}
Sharded::Sharded(Sharded&&) noexcept = default;
Sharded& Sharded::operator=(Sharded&&) noexcept = default;
Sharded::~Sharded() = default;

const std::shared_ptr<Sharded::Impl>& Sharded::here() const {
  if (impl_) return impl_;
  throw StateError("this Sharded was moved from", {.hint = "Use the one that it was moved to."});
}
Sharded::Impl& Sharded::impl() const { return *here(); }

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

void Sharded::gather() {
  impl().reducer->set_aside();
  impl().unshard();
}
void Sharded::reduce_next_backward() { impl().reducer->set_sync(true); }
void Sharded::finish_reduction() { impl().finish_reduction(); }
void Sharded::release() {
  impl().reducer->put_back();
  impl().reshard();
}

std::vector<int> Sharded::own_pieces() const { return impl().own_pieces(); }

Sharded::NoSync Sharded::no_sync() { return NoSync(here()); }

std::vector<at::Tensor> Sharded::parameters() const {
  return without_names(impl().named_parameters());
}

NamedTensors Sharded::named_parameters() const { return impl().named_parameters(); }

void Sharded::zero_grad() { impl().zero_grad(); }

double Sharded::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options) {
  return impl().clip_grad_norm(max_norm, options);
}

const comm::Group& Sharded::shard_ranks() const { return impl().shard_ranks(); }
Sharded::Unsharded Sharded::unshard() {
  impl().check_outside_of_join("unshard()");
  return Unsharded(here());
}
NamedTensors Sharded::state() {
  impl().check_outside_of_join("state()");
  return impl().state();
}
void Sharded::load_state(const NamedTensors& state) {
  impl().check_outside_of_join("load_state()");
  impl().load_state(state);
}
void Sharded::shards_changed() { impl().shards_changed(); }
const ShardOptions& Sharded::options() const { return impl().options; }
ShardReport Sharded::report() const { return impl().report(); }
void Sharded::start_recording() { impl().start_recording(); }
ShardRecord Sharded::stop_recording() { return impl().stop_recording(); }
ShardProgress Sharded::progress() const { return impl().progress(); }
void Sharded::set_progress(const ShardProgress& progress) { impl().set_progress(progress); }
sharding::OwnParts Sharded::own_parts() const {
  impl().check_outside_of_join("saving and loading");
  return impl().own_parts();
}
std::string Sharded::description() const { return impl().description(); }

Sharded::NoSync::NoSync(const std::shared_ptr<Impl>& impl) : impl_(impl) { impl->hold_sync(1); }
Sharded::NoSync::NoSync(NoSync&& other) noexcept : impl_(std::exchange(other.impl_, {})) {}
Sharded::NoSync::~NoSync() {
  if (const auto impl = impl_.lock()) impl->hold_sync(-1);
}

Sharded::Unsharded::Unsharded(const std::shared_ptr<Impl>& impl) : impl_(impl) { impl->unshard(); }
Sharded::Unsharded::Unsharded(Unsharded&& other) noexcept : impl_(std::exchange(other.impl_, {})) {}
Sharded::Unsharded::~Unsharded() {
  const auto impl = impl_.lock();
  if (!impl) return;
  try {
    impl->reshard();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // Communication has failed, and says so to whoever uses it next.
  }
}

}  // namespace trestle
