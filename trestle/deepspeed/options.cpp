#include "trestle/deepspeed/options.h"

#include <algorithm>
#include <limits>

#include "trestle/precision/autocast.h"

namespace trestle::deepspeed {
namespace {

bool in_16_bits(const DeepspeedConfig& config) { return config.precision != "fp32"; }

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name.empty()) return {};
  switch (precision::parse_precision(name)) {
    case Precision::Float16:
      return at::kHalf;
    case Precision::BFloat16:
      return at::kBFloat16;
    case Precision::Float32:
      break;
  }
  return at::kFloat;
}

}  // namespace

std::vector<mesh::Dimension> mesh_dimensions(const DeepspeedConfig& config) {
  if (config.stage == 0 && in_16_bits(config)) return {{"replicate", config.ranks}, {"shard", 1}};
  if (config.stage == 0) return {{"replicate", config.ranks}};
  if (config.shard_ranks == 0) return {{"shard", config.ranks}};
  const int shard = static_cast<int>(config.shard_ranks);
  return {{"replicate", config.ranks / shard}, {"shard", shard}};
}

ShardOptions shard_options(const DeepspeedConfig& config) {
  constexpr std::int64_t bytes_each = 4;  // the weights' own, in which buckets are measured
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / bytes_each;
  ShardOptions options;
  options.level = static_cast<ShardLevel>(config.stage);
  if (config.stage == 0 && in_16_bits(config)) options.level = ShardLevel::OptimizerState;
  options.buckets.size = Bytes{std::min(config.reduce_bucket, most) * bytes_each};
  options.buckets.first = std::min(options.buckets.first, options.buckets.size);
  options.unused_parameters =
      config.ignore_unused ? UnusedParameters::Find : UnusedParameters::Refuse;
  if (in_16_bits(config)) options.precision.parameters = dtype_of(config.precision);
  options.precision.reduce = dtype_of(config.communication);
  options.shards_on_cpu = config.offload_optimizer || config.offload_parameters;
  return options;
}

precision::GradientScalerOptions scaler_options(const DeepspeedConfig& config) {
  const DeepspeedScaler& scaler = config.scaler;
  return {.initial_scale = scaler.initial_scale,
          .growth_factor = scaler.growth_factor,
          .backoff_factor = scaler.backoff_factor,
          .growth_interval = scaler.growth_interval,
          .dynamic = scaler.dynamic,
          .hysteresis = scaler.hysteresis,
          .consecutive_hysteresis = scaler.consecutive_hysteresis,
          .lowest_scale = scaler.dynamic ? scaler.lowest_scale : 0,
          .fail_at_lowest = scaler.dynamic && config.stage > 0};
}

}  // namespace trestle::deepspeed
