#include "trestle/deepspeed/config/sections.h"

#include <array>
#include <cmath>
#include <string_view>

#include "trestle/base/text.h"

namespace trestle::deepspeed {

namespace {

void read_fp16(const Json& json, bool& enabled, Reading reading) {
  DeepspeedScaler& scaler = reading.config.scaler;
  double fixed_scale = 0;
  std::int64_t power = 16;
  const double most = 100;  // 2^100 is still a float
  read_object(json, "fp16",
              {obeyed("enabled", enabled), obeyed("loss_scale", fixed_scale, {0, 1e30}),
               obeyed("initial_scale_power", power, {0, most}),
               obeyed("loss_scale_window", scaler.growth_interval, {1, 1e15}),
               obeyed("hysteresis", scaler.hysteresis, {1, 1e15}),
               obeyed("consecutive_hysteresis", scaler.consecutive_hysteresis),
               obeyed("min_loss_scale", scaler.lowest_scale, {0, 1e30}),
               idle("auto_cast", Type::Switch, "inputs are cast to the compute dtype"),
               idle("fused_mode", Type::Switch, "every optimizer is fused"),
               only("fp16_master_weights_and_grads", false, "trestle keeps weights in fp32")},
              reading);
  scaler.dynamic = fixed_scale == 0;
  scaler.initial_scale = scaler.dynamic ? std::ldexp(1.0, static_cast<int>(power)) : fixed_scale;
  if (scaler.dynamic && scaler.lowest_scale > scaler.initial_scale)
    reading.problems.add(text("'min_loss_scale' in fp16 is ", scaler.lowest_scale,
                              ", above the initial scale, 2^", power, " = ", scaler.initial_scale,
                              " (initial_scale_power)"));
}

void read_bf16(const Json& json, const std::string& path, bool& enabled, Reading reading) {
  const std::string in_fp32 = "trestle keeps weights and the optimizer's state in fp32";
  read_object(
      json, path,
      {obeyed("enabled", enabled),
       idle("immediate_grad_update", Type::Switch, "gradients accumulate as they are computed"),
       only("check_grad_overflow", false, "no step is skipped for an overflow in bf16"),
       only("bf16_master_weights_and_grads", false, in_fp32),
       only("bf16_optimizer_states", false, in_fp32)},
      reading);
}

void read_recomputation(const Json& json, Reading reading) {
  const std::string path = "activation_checkpointing";
  const std::string why =
      "functions are checkpointed in the program, and what they keep stays whole on its device";
  Keys keys = {idle("number_checkpoints", Type::Integer, why)};
  for (const char* name : {"partition_activations", "contiguous_memory_optimization",
                           "cpu_checkpointing", "synchronize_checkpoint_boundary", "profile"})
    keys.push_back(idle(name, Type::Switch, why));
  read_object(json, path, keys, reading);
}

void read_checkpoint(const Json& json, Reading reading) {
  std::string tag_validation;
  Key tag = obeyed("tag_validation", tag_validation, {"ignore", "warn", "fail"});
  tag.no_effect = "all ranks write one checkpoint with one name";
  read_object(
      json, "checkpoint",
      {tag, idle("load_universal", Type::Switch, "any number of ranks can read a checkpoint"),
       only("use_node_local_storage", false,
            "a checkpoint is one folder that all ranks can access"),
       idle("parallel_write", Type::Anything, "every rank writes its own shard")},
      reading);
}

// A section that would change what is computed, and what comes nearest to it, if anything does.
struct ForeignSection {
  const char* name;
  std::string_view nearest = {};
};

constexpr std::array foreign_sections = {
    ForeignSection{"amp", "\"bf16\" or \"fp16\": {\"enabled\": true}"},
    ForeignSection{"torch_autocast", "\"bf16\": {\"enabled\": true}"},
    ForeignSection{"sparse_attention"},
    ForeignSection{"progressive_layer_drop"},
    ForeignSection{"eigenvalue"},
    ForeignSection{"curriculum_learning"},
    ForeignSection{"data_efficiency"},
    ForeignSection{"compression_training"},
    ForeignSection{"quantize_training"},
    ForeignSection{"weight_quantization"},
    ForeignSection{"elasticity", "any number of ranks reads a checkpoint of any other"},
    ForeignSection{"autotuning", "trestle levels, balance and sweep measure the choices"},
    ForeignSection{"hybrid_engine"},
    ForeignSection{"pipeline", "trestle train --mesh pipeline=N, or trestle::Pipeline"},
    ForeignSection{"compile"},
    ForeignSection{"tensor_parallel", "stage 3, or a pipeline, for a model that does not fit"},
    ForeignSection{"expert_parallel"},
    ForeignSection{"data_types", "\"communication_data_type\""},
    ForeignSection{"nebula", "checkpoint folders, which all ranks write"}};

// They may only be disabled.
void add_foreign_sections(Keys& keys, Reading reading) {
  for (const ForeignSection& section : foreign_sections) {
    const char* const name = section.name;
    const std::string_view nearest = section.nearest;
    keys.push_back(object(name, [name, nearest, reading](const Json& json) {
      const bool off = (json.is_boolean() && !json.get<bool>()) ||
                       (json.is_object() && json.contains("enabled") &&
                        json["enabled"].is_boolean() && !json["enabled"].get<bool>());
      if (!off)
        reading.problems.add(text("'", name,
                                  "' is a feature of DeepSpeed that trestle does not have. "
                                  "Leave it out.",
                                  nearest.empty() ? "" : " Nearest: ", nearest,
                                  nearest.empty() ? "" : "."));
    }));
  }
}

void add_reports(Keys& keys) {
  for (const char* name : {"steps_per_print", "wall_clock_breakdown", "memory_breakdown",
                           "dump_state", "log_level", "timers", "flops_profiler", "comms_logger",
                           "tensorboard", "wandb", "csv_monitor", "comet", "monitor_config"})
    keys.push_back(idle(name, Type::Anything, "this file does not configure reports"));
  keys.push_back(idle("vocabulary_size", Type::Anything, "DeepSpeed uses it for a warning only"));
}

void add_gradient_keys(Keys& keys, DeepspeedConfig& config) {
  const std::string ours =
      "trestle divides gradients before it sums them, and fp16 gradients partly afterwards";
  keys.push_back(obeyed("gradient_clipping", config.clip_grad_norm, {0, 1e30}));
  keys.push_back(obeyed("communication_data_type", config.communication, {"fp32", "fp16", "bf16"}));
  keys.push_back(idle("prescale_gradients", Type::Switch, ours));
  keys.push_back(idle("gradient_predivide_factor", Type::Number, ours));
  keys.push_back(only("sparse_gradients", false, "trestle's gradients are dense"));
  keys.push_back(only("disable_allgather", false, "every rank needs the weights after a step"));
  keys.push_back(idle("zero_allow_untested_optimizer", Type::Switch,
                      "any elementwise optimizer may be sharded"));
  keys.push_back(
      idle("zero_force_ds_cpu_optimizer", Type::Switch, "there is one kind of optimizer"));
}

}  // namespace

std::optional<Typed> read_typed(const Json& json, const std::string& path, Keys others,
                                Reading reading) {
  Typed typed{.type = {}, .params = Json::object()};
  others.push_back(obeyed("type", typed.type, {}));
  others.push_back(object("params", [&](const Json& inner) { typed.params = inner; }));
  read_object(json, path, others, reading);
  if (!typed.type.empty()) return typed;
  if (json.is_object() && (!is_given(json, "type") || json["type"] == ""))
    reading.problems.add(text("'", path, "' has no 'type'"));
  return std::nullopt;
}

void read_file_object(const Json& json, Reading reading) {
  DeepspeedConfig& config = reading.config;
  Batch batch;
  bool fp16 = false, bf16 = false;
  const Json* scheduler = nullptr;
  Keys keys = {
      obeyed("train_batch_size", batch.train, {1, 1e15}),
      obeyed("train_micro_batch_size_per_gpu", batch.micro, {1, 1e6}),
      obeyed("gradient_accumulation_steps", batch.accumulate, {1, 1e6}),
      obeyed("dataloader_drop_last", config.drop_last),
      object("zero_optimization", [&](const Json& inner) { read_zero(inner, reading); }),
      object("fp16", [&](const Json& inner) { read_fp16(inner, fp16, reading); }),
      object("bf16", [&](const Json& inner) { read_bf16(inner, "bf16", bf16, reading); }),
      object("bfloat16", [&](const Json& inner) { read_bf16(inner, "bfloat16", bf16, reading); }),
      object("optimizer", [&](const Json& inner) { read_optimizer(inner, reading); }),
      object("scheduler", [&](const Json& inner) { scheduler = &inner; }),
      object("activation_checkpointing",
             [&](const Json& inner) { read_recomputation(inner, reading); }),
      object("checkpoint", [&](const Json& inner) { read_checkpoint(inner, reading); })};
  add_gradient_keys(keys, config);
  add_reports(keys);
  add_foreign_sections(keys, reading);
  read_object(json, "", keys, reading);
  if (!is_given(json, "gradient_clipping")) {
    config.clip_grad_norm = default_clip_grad_norm;
    config.clips_by_default = true;
  }
  if (scheduler != nullptr) read_scheduler(*scheduler, reading);
  if (is_given(json, "bf16") && is_given(json, "bfloat16"))
    reading.problems.add(
        "bf16 and bfloat16 are both given, but are the same section. Leave one out.");
  if (fp16 && bf16) reading.problems.add("fp16 and bf16 are both enabled. Enable one of them.");
  config.precision = fp16 ? "fp16" : bf16 ? "bf16" : "fp32";
  const bool terms_are_read =
      is_given(json, "train_batch_size") == batch.train.has_value() &&
      is_given(json, "train_micro_batch_size_per_gpu") == batch.micro.has_value() &&
      is_given(json, "gradient_accumulation_steps") == batch.accumulate.has_value();
  if (terms_are_read) derive_batch(batch, reading);
}

}  // namespace trestle::deepspeed
