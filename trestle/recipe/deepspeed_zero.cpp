#include "trestle/base/text.h"
#include "trestle/recipe/deepspeed_sections.h"

namespace trestle::recipe::deepspeed {

namespace {

constexpr auto not_pinned = "shards on the CPU lie in ordinary memory";

// "offload_optimizer" or "offload_param": to the CPU or not.
void read_offload(const Json& json, const std::string& name, bool& to_cpu, Reading reading) {
  const std::string path = "zero_optimization." + name;
  const std::string only_nvme = "is of offloading to NVMe, which trestle does not do";
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
    reading.problems.add(
        text("'device' in ", path,
             " is nvme: trestle offloads to the CPU's memory alone. Write \"cpu\"."));
  to_cpu = device == "cpu";
}

// Names that DeepSpeed still takes.
void add_old_keys(Keys& keys, Reading reading) {
  const auto moved = [&](const char* name, const char* now, bool& to) {
    Key key = obeyed(name, to);
    key.set = [&to, name, now, reading](const Value& value) {
      if (!std::get<bool>(value)) return;
      to = true;
      reading.config.notes.push_back(
          text("zero_optimization.", name, " is an old name: it is read as ", now));
    };
    keys.push_back(key);
  };
  moved("cpu_offload", "offload_optimizer { device: cpu }", reading.config.offload_optimizer);
  moved("cpu_offload_param", "offload_param { device: cpu }", reading.config.offload_parameters);
  keys.push_back(idle("cpu_offload_use_pin_memory", Type::Switch, not_pinned));
  keys.push_back(idle("stage3_gather_fp16_weights_on_model_save", Type::Switch,
                      "a checkpoint has whole tensors, whoever saves it"));
}

// Those of stage 3 have two names each in DeepSpeed.
void add_stage_3_keys(Keys& keys) {
  const auto both = [&](const std::string& name, Type type, const std::string& why) {
    keys.push_back(idle("stage3_" + name, type, why));
    keys.push_back(idle(name, type, why));
  };
  const std::string by_unit =
      "a unit's parameters are gathered before it runs and let go after it, not by counts of "
      "elements";
  for (const char* name : {"max_live_parameters", "max_reuse_distance", "prefetch_bucket_size",
                           "param_persistence_threshold", "model_persistence_threshold",
                           "module_granularity_threshold"})
    both(name, Type::Integer, by_unit);
  both("use_all_reduce_for_fetch_params", Type::Switch, "parameters are gathered by all-gather");
  both("allgather_sequential", Type::Switch, "a unit is gathered at once");
  both("gather_16bit_weights_on_model_save", Type::Switch,
       "a checkpoint has whole tensors, whoever saves it");
  keys.push_back(idle("sub_group_size", Type::Integer, "a shard is stepped as one"));
  keys.push_back(idle("mics_hierarchical_params_gather", Type::Switch,
                      "the groups of a mesh are gathered in one collective"));
  keys.push_back(idle("memory_efficient_linear", Type::Switch, "layers are libtorch's own"));
  keys.push_back(idle("override_module_apply", Type::Switch, "layers are libtorch's own"));
}

void add_unobeyed_keys(Keys& keys) {
  const std::string same = "the numbers are the same either way";
  const std::string any_ranks = "any number of ranks reads a checkpoint";
  const auto switches = [&](std::initializer_list<const char*> names, const std::string& why) {
    for (const char* name : names) keys.push_back(idle(name, Type::Switch, why));
  };
  switches({"allgather_partitions"}, "shards are gathered by all-gather; " + same);
  switches({"reduce_scatter"}, "from stage 1 on gradients are reduced by reduce-scatter; " + same);
  switches({"use_multi_rank_bucket_allreduce"}, "a bucket holds every rank's part; " + same);
  switches({"contiguous_gradients"}, "gradients lie in flat buffers; " + same);
  switches({"round_robin_gradients", "legacy_stage1"}, same);
  switches({"load_from_fp32_weights"}, "weights are kept and saved in fp32");
  switches({"elastic_checkpoint", "pipeline_loading_checkpoint"}, any_ranks);
  switches({"log_trace_cache_warnings", "enable_sanity_checks"}, "there is nothing to switch on");
  keys.push_back(
      idle("zeropp_loco_param", Type::Anything, "is of gradients that travel quantized"));
  for (const char* name : {"zero_quantized_weights", "zero_quantized_nontrainable_weights",
                           "zero_quantized_gradients"})
    keys.push_back(only(name, false, "trestle does not quantize what travels"));
  keys.push_back(only("zero_hpz_partition_size", std::int64_t{1},
                      "trestle keeps no second partition of the parameters"));
}

}  // namespace

void read_zero(const Json& json, Reading reading) {
  DeepspeedConfig& config = reading.config;
  if (json.is_boolean()) {  // as DeepSpeed's first versions had it
    config.stage = json.get<bool>() ? 1 : 0;
    config.notes.push_back(text("zero_optimization ", shown(json),
                                " is an old form: it is read as stage ", config.stage));
    return;
  }
  std::int64_t shard_ranks = -1, gather_bucket = 0;
  Key gathered = obeyed("allgather_bucket_size", gather_bucket, {1, no_limit});
  gathered.no_effect = "parameters are gathered in the pieces in which gradients are reduced";
  Keys keys = {obeyed("stage", config.stage, {0, 3}),
               obeyed("reduce_bucket_size", config.reduce_bucket, {1, no_limit}),
               gathered,
               idle("overlap_comm", Type::Switch,
                    "what can be reduced is reduced while the backward goes on"),
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
                                         ": at stage 3 a unit's gradients are reduced together"));
  for (const auto& [old, now] : {std::pair("cpu_offload", "offload_optimizer"),
                                 std::pair("cpu_offload_param", "offload_param")})
    if (is_given(json, old) && is_given(json, now))
      reading.problems.add(text("'", old, "' in zero_optimization is the old name of '", now,
                                "', which is given too. Leave the old one out."));
  config.shard_ranks = shard_ranks > 0 ? shard_ranks : 0;
}

}  // namespace trestle::recipe::deepspeed
