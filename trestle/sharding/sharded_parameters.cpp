#include "trestle/sharding/sharded_parameters.h"

#include <ATen/core/grad_mode.h>

#include "trestle/base/error.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/engine/full_state.h"
#include "trestle/sharding/engine/layer_units.h"
#include "trestle/sharding/engine/shard_engine.h"
#include "trestle/sharding/options/option_checks.h"

namespace trestle {

struct ShardedParameters::Units {
  std::vector<sharding::LayerUnit> layers;  // in their order

  const sharding::LayerUnit* find(int layer) const {
    for (const auto& unit : layers)
      if (unit.layer == static_cast<std::size_t>(layer)) return &unit;
    return nullptr;
  }
};

namespace {

void refuse_reproducible(const ShardOptions& options) {
  if (options.reproducible.micro_batches > 0)
    throw UsageError(
        "ShardOptions::reproducible for ShardedParameters",
        {.hint = "Leave it out: a pipeline adds up its micro-batches in their order."});
}

}  // namespace

ShardedParameters::ShardedParameters(const NamedTensors& parameters, const NamedTensors& buffers,
                                     const sharding::RankGroups& ranks, const ShardOptions& options)
    : engine_(std::make_shared<sharding::ShardEngine>(options, ranks)) {
  refuse_reproducible(options);
  sharding::need_no_layers(options, "ShardedParameters");
  if (!options.units.names.empty())
    throw UsageError("ShardOptions::units.names for ShardedParameters without layers, one unit");
  if (options.level == ShardLevel::Parameters) {
    const NamedTensors own = sharding::each_once(parameters);
    engine_->start_from_rank_0(own, {});
    engine_->builder().add_unit("all", own);
  }
  begin(parameters, buffers, {});
}

ShardedParameters::ShardedParameters(const NamedTensors& parameters, const NamedTensors& buffers,
                                     const nn::Graph& graph, int first, int last,
                                     const sharding::RankGroups& ranks, const ShardOptions& options)
    : engine_(std::make_shared<sharding::ShardEngine>(options, ranks)) {
  refuse_reproducible(options);
  sharding::need_no_layers(options, "ShardedParameters");
  std::vector<std::size_t> order;
  if (options.level == ShardLevel::Parameters) {
    auto units = sharding::make_layer_units({.graph = graph,
                                             .first = static_cast<std::size_t>(first),
                                             .last = static_cast<std::size_t>(last)},
                                            *engine_);
    order = sharding::order_of(units);
    if (!units.empty()) units_ = std::make_shared<const Units>(Units{std::move(units)});
  }
  begin(parameters, buffers, order);
}

void ShardedParameters::begin(const NamedTensors& parameters, const NamedTensors& buffers,
                              const std::vector<std::size_t>& order) {
  engine_->finish(sharding::each_once(parameters), sharding::each_once(buffers),
                  sharding::GradientReducer::Driver::Caller, order);
  engine_->reducer().set_sync(false);
}

ShardedParameters::ShardedParameters(ShardedParameters&&) noexcept = default;
ShardedParameters& ShardedParameters::operator=(ShardedParameters&&) noexcept = default;
ShardedParameters::~ShardedParameters() = default;

void ShardedParameters::unshard() {
  engine_->drop_zeroed_gradients();
  engine_->reducer().set_aside_gradients();
  gathers_layers() ? engine_->unsharder()->begin_use() : engine_->unshard();
}

nn::Values ShardedParameters::run_layer(int layer, const nn::Values& arguments,
                                        const Forward& forward) {
  const sharding::LayerUnit* const found = units_ ? units_->find(layer) : nullptr;
  if (!found) return forward(arguments);
  auto& unsharder = *engine_->unsharder();
  nn::Values inputs = arguments;
  const auto call = unsharder.begin(found->unit, inputs);
  nn::Values outputs = forward(inputs);
  unsharder.end(call, outputs, found->after);
  return outputs;
}

at::Tensor ShardedParameters::whole(const at::Tensor& parameter) {
  return gathers_layers() ? engine_->unsharder()->whole(parameter) : parameter;
}

void ShardedParameters::shadow_forward() {
  if (!units_) return;  // nothing to gather
  const at::NoGradGuard no_grad;
  engine_->unsharder()->shadow_forward();
}

void ShardedParameters::end_backward() {
  if (gathers_layers()) engine_->unsharder()->end_stage_backward();
}

void ShardedParameters::reduce_next_backward() { engine_->reducer().set_sync(true); }

void ShardedParameters::finish_reduction() {
  engine_->reducer().finish();
  engine_->reducer().set_sync(false);
  if (engine_->options().broadcast.buffers) engine_->broadcast_buffers(0);
}

void ShardedParameters::abandon() {
  engine_->abandon_step();
  reshard();
}

void ShardedParameters::reshard() {
  engine_->reducer().restore_gradients();
  gathers_layers() ? engine_->unsharder()->end_use() : engine_->reshard();
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
