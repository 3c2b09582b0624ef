#include "trestle/sharding/sharded.h"

#include <torch/nn/module.h>

#include "trestle/base/error.h"
#include "trestle/device/tensors_of.h"
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

nn::Values Sharded::forward(nn::Values inputs) { return impl_->forward(std::move(inputs)); }

at::Tensor Sharded::forward(const at::Tensor& input) {
  nn::Values outputs = impl_->forward({input});
  if (outputs.size() == 1) return outputs[0];
  throw UsageError("the model returns more than one tensor",
                   {.hint = "Call forward({input}), which returns them all."});
}

Sharded::Scope Sharded::begin(const std::function<void(const Change&)>& inputs) {
  return impl_->begin(inputs);
}

void Sharded::end(const Scope& scope, const std::function<void(const Change&)>& outputs) {
  impl_->end(scope, outputs);
}

void Sharded::backward(const at::Tensor& loss, std::optional<double> weight) {
  impl_->backward(loss, weight);
}

void Sharded::backward_without_samples() { impl_->backward_without_samples(); }

void Sharded::gather() {
  impl_->reducer->set_aside();
  impl_->unshard();
}
void Sharded::reduce_next_backward() { impl_->reducer->set_sync(true); }
void Sharded::finish_reduction() { impl_->finish_reduction(); }
void Sharded::release() {
  impl_->reducer->put_back();
  impl_->reshard();
}

std::vector<int> Sharded::own_pieces() const { return impl_->own_pieces(); }

Sharded::NoSync Sharded::no_sync() { return NoSync(impl_); }

std::vector<at::Tensor> Sharded::parameters() const {
  return tensors_of(impl_->named_parameters());
}

NamedTensors Sharded::named_parameters() const { return impl_->named_parameters(); }

void Sharded::zero_grad() { impl_->zero_grad(); }

double Sharded::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options) {
  return impl_->clip_grad_norm(max_norm, options);
}

const comm::Group& Sharded::shard_ranks() const { return impl_->shard_ranks(); }
Sharded::Unsharded Sharded::unshard() {
  impl_->check_outside_of_join("unshard()");
  return Unsharded(impl_);
}
NamedTensors Sharded::state() {
  impl_->check_outside_of_join("state()");
  return impl_->state();
}
void Sharded::load_state(const NamedTensors& state) {
  impl_->check_outside_of_join("load_state()");
  impl_->load_state(state);
}
void Sharded::shards_changed() { impl_->shards_changed(); }
const ShardOptions& Sharded::options() const { return impl_->options; }
ShardReport Sharded::report() const { return impl_->report(); }
void Sharded::start_recording() { impl_->start_recording(); }
ShardRecord Sharded::stop_recording() { return impl_->stop_recording(); }
ShardProgress Sharded::progress() const { return impl_->progress(); }
void Sharded::set_progress(const ShardProgress& progress) { impl_->set_progress(progress); }
sharding::OwnParts Sharded::own_parts() const {
  impl_->check_outside_of_join("saving and loading");
  return impl_->own_parts();
}
std::string Sharded::description() const { return impl_->description(); }

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
