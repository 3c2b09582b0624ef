#include "trestle/base/text.h"
#include "trestle/deepspeed/config/sections.h"

namespace trestle::deepspeed {

namespace {

constexpr auto not_pinned = "shards on the CPU are not in pinned memory";

// Reads "offload_optimizer" or "offload_param".
void read_offload(const Json& json, const std::string& name, bool& to_cpu, Reading reading) {
  const std::string path = "zero_optimization." + name;
  const std::string only_nvme = "trestle does not offload to NVMe";
  std::string device = "none";
  read_object(
      json, path,
      {obeyed("device", device, {"none", "cpu", "nvme"}),
       idle("pin_memory", Type::Switch, not_pinned),
       idle("ratio", Type::Number, "all of the optimizer's state is offloaded"),
       idle("nvme_path", Type::Text, only_nvme), idle("buffer_count", Type::Integer, only_nvme),
       idle("buffer_size", Type::Integer, only_nvme), idle("max_in_cpu", Type::Integer, only_nvme),
       idle("pipeline_read", Type::Switch, only_nvme),
       idle("pipeline_write", Type::Switch, only_nvme), idle("fast_init", Type::Switch, only_nvme)},
      reading);
  if (device == "nvme")
    reading.problems.add(text("'device' in ", path,
                              " is nvme (ZeRO-Infinity), but trestle offloads to CPU memory only. "
                              "Write \"cpu\": the shards and the optimizer's state are in CPU "
                              "memory then."));
  to_cpu = device == "cpu";
}

// Old names that DeepSpeed still accepts.
void add_old_keys(Keys& keys, Reading reading) {
  const auto moved = [&](const char* name, const char* now, bool& to) {
    Key key = obeyed(name, to);
    key.set = [&to, name, now, reading](const Value& value) {
      if (!std::get<bool>(value)) return;
      to = true;
      reading.config.notes.push_back(text("zero_optimization.", name, " is an old name of ", now));
    };
    keys.push_back(key);
  };
  moved("cpu_offload", "offload_optimizer { device: cpu }", reading.config.offload_optimizer);
  moved("cpu_offload_param", "offload_param { device: cpu }", reading.config.offload_parameters);
  keys.push_back(idle("cpu_offload_use_pin_memory", Type::Switch, not_pinned));
  keys.push_back(idle("stage3_gather_fp16_weights_on_model_save", Type::Switch,
                      "a checkpoint always holds whole tensors"));
}

// Each key of stage 3 has two names in DeepSpeed.
void add_stage_3_keys(Keys& keys) {
  const auto both = [&](const std::string& name, Type type, const std::string& why) {
    keys.push_back(idle("stage3_" + name, type, why));
    keys.push_back(idle(name, type, why));
  };
  const std::string by_unit =
      "a unit's parameters are all-gathered before it runs and freed afterwards, not by counts of "
      "elements";
  for (const char* name : {"max_live_parameters", "max_reuse_distance", "prefetch_bucket_size",
                           "param_persistence_threshold", "model_persistence_threshold",
                           "module_granularity_threshold"})
    both(name, Type::Integer, by_unit);
  both("use_all_reduce_for_fetch_params", Type::Switch, "parameters are all-gathered");
  both("allgather_sequential", Type::Switch, "a unit is all-gathered at once");
  both("gather_16bit_weights_on_model_save", Type::Switch,
       "a checkpoint always holds whole tensors");
  keys.push_back(idle("mics_hierarchical_params_gather", Type::Switch,
                      "a mesh dimension is all-gathered in one collective"));
  keys.push_back(idle("memory_efficient_linear", Type::Switch, "trestle uses libtorch's layers"));
  keys.push_back(idle("override_module_apply", Type::Switch, "trestle uses libtorch's layers"));
}

void add_unobeyed_keys(Keys& keys) {
  const std::string same = "the results are the same either way";
  const std::string any_ranks = "any number of ranks can read a checkpoint";
  const auto switches = [&](std::initializer_list<const char*> names, const std::string& why) {
    for (const char* name : names) keys.push_back(idle(name, Type::Switch, why));
  };
  switches({"allgather_partitions"}, "shards are all-gathered; " + same);
  switches({"reduce_scatter"}, "from stage 1 on gradients are reduce-scattered; " + same);
  switches({"use_multi_rank_bucket_allreduce"}, "a bucket holds every rank's shard; " + same);
  switches({"contiguous_gradients"}, "gradients are in flat buffers; " + same);
  switches({"round_robin_gradients", "legacy_stage1"}, same);
  switches({"load_from_fp32_weights"}, "weights are kept and saved in fp32");
  switches({"elastic_checkpoint", "pipeline_loading_checkpoint"}, any_ranks);
  switches({"log_trace_cache_warnings", "enable_sanity_checks"}, "trestle has no such switch");
  keys.push_back(idle("zeropp_loco_param", Type::Anything, "trestle does not quantize gradients"));
  const std::string unquantized = "trestle does not quantize communication (ZeRO++)";
  for (const char* name : {"zero_quantized_weights", "zero_quantized_nontrainable_weights"})
    keys.push_back(only(name, false, unquantized,
                        "\"bf16\": {\"enabled\": true} all-gathers 16 bits for each weight"));
  keys.push_back(only("zero_quantized_gradients", false, unquantized,
                      "\"communication_data_type\": \"bf16\" reduces 16 bits for each gradient"));
  keys.push_back(only("zero_hpz_partition_size", std::int64_t{1},
                      "trestle keeps no second partition of the parameters (ZeRO++)",
                      "\"mics_shard_size\" with the same number all-gathers among that number of "
                      "ranks, and replicates over all others"));
}

}  // namespace

void read_zero(const Json& json, Reading reading) {
  DeepspeedConfig& config = reading.config;
  if (json.is_boolean()) {  // as in DeepSpeed's first versions
    config.stage = json.get<bool>() ? 1 : 0;
    config.notes.push_back(
        text("zero_optimization ", shown(json), " is an old form of stage ", config.stage));
    return;
  }
  std::int64_t shard_ranks = -1, gather_bucket = 0;
  Key gathered = obeyed("allgather_bucket_size", gather_bucket, {1, no_limit});
  gathered.no_effect = "parameters are all-gathered in the buckets of the gradients";
  Key sub_group = obeyed("sub_group_size", config.sub_group, {0, no_limit});
  sub_group.no_effect =
      "the optimizer steps a shard as a whole; DeepSpeed's form of a checkpoint has the sub-groups";
  Keys keys = {
      obeyed("stage", config.stage, {0, 3}),
      sub_group,
      obeyed("reduce_bucket_size", config.reduce_bucket, {1, no_limit}),
      gathered,
      idle("overlap_comm", Type::Switch, "gradients are always reduced during the backward"),
      obeyed("ignore_unused_parameters", config.ignore_unused),
      obeyed("mics_shard_size", shard_ranks, {-1, 1e6}),
      object("offload_optimizer",
             [&](const Json& inner) {
               read_offload(inner, "offload_optimizer", config.offload_optimizer, reading);
             }),
      object("offload_param", [&](const Json& inner) {
        read_offload(inner, "offload_param", config.offload_parameters, reading);
      })};
  add_unobeyed_keys(keys);
  add_stage_3_keys(keys);
  add_old_keys(keys, reading);
  read_object(json, "zero_optimization", keys, reading);
  if (config.stage == 3 && is_given(json, "reduce_bucket_size"))
    config.without_effect.push_back(text("zero_optimization.reduce_bucket_size ",
                                         shown(json["reduce_bucket_size"]),
                                         ": at stage 3 a bucket holds one unit's gradients"));
  for (const auto& [old, now] : {std::pair("cpu_offload", "offload_optimizer"),
                                 std::pair("cpu_offload_param", "offload_param")})
    if (is_given(json, old) && is_given(json, now))
      reading.problems.add(text("'", old, "' in zero_optimization is the old name of '", now,
                                "', which is given too. Leave the old one out."));
  config.shard_ranks = shard_ranks > 0 ? shard_ranks : 0;
}

}  // namespace trestle::deepspeed
