#include "trestle/sharding/sharded_parameters.h"

#include "trestle/base/error.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/engine/full_state.h"
#include "trestle/sharding/engine/shard_engine.h"

namespace trestle {

ShardedParameters::ShardedParameters(const NamedTensors& parameters, const NamedTensors& buffers,
                                     const sharding::RankGroups& ranks, const ShardOptions& options)
    : engine_(std::make_shared<sharding::ShardEngine>(options, ranks)) {
  if (!options.units.names.empty())
    throw UsageError("ShardOptions::units.names for ShardedParameters, which are one unit");
  if (options.reproducible.micro_batches > 0)
    throw UsageError(
        "ShardOptions::reproducible for ShardedParameters",
        {.hint = "Leave it out: a pipeline adds up its micro-batches in their order."});
  const NamedTensors own = sharding::each_once(parameters);
  const NamedTensors own_buffers = sharding::each_once(buffers);
  if (options.level == ShardLevel::Parameters) {
    engine_->start_from_rank_0(own, own_buffers);
    engine_->builder().add_unit("all", own);
  }
  engine_->finish(own, own_buffers, sharding::GradientReducer::Driver::Caller);
  engine_->reducer().set_sync(false);
}

ShardedParameters::ShardedParameters(ShardedParameters&&) noexcept = default;
ShardedParameters& ShardedParameters::operator=(ShardedParameters&&) noexcept = default;
ShardedParameters::~ShardedParameters() = default;

void ShardedParameters::unshard() {
  engine_->reducer().set_aside_gradients();
  engine_->unshard();
}

void ShardedParameters::reduce_next_backward() { engine_->reducer().set_sync(true); }

void ShardedParameters::finish_reduction() {
  engine_->reducer().finish();
  engine_->reducer().set_sync(false);
  if (engine_->options().broadcast.buffers) engine_->broadcast_buffers(0);
}

void ShardedParameters::reshard() {
  engine_->reducer().restore_gradients();
  engine_->reshard();
}

std::vector<at::Tensor> ShardedParameters::parameters() const {
  return without_names(engine_->stepped());
}
NamedTensors ShardedParameters::named_parameters() const { return engine_->stepped(); }
void ShardedParameters::zero_grad() { engine_->zero_grad(); }
ShardedParameters::Unsharded ShardedParameters::unsharded() { return Unsharded(engine_); }
NamedTensors ShardedParameters::state() { return sharding::full_state(*engine_); }
void ShardedParameters::load_state(const NamedTensors& state) {
  sharding::load_full_state(*engine_, state);
}
void ShardedParameters::shards_changed() { engine_->shards_changed(); }
const ShardOptions& ShardedParameters::options() const { return engine_->options(); }
ShardReport ShardedParameters::report() const { return engine_->report(); }

}  // namespace trestle
