#pragma once

#include <string>

#include "trestle/base/error.h"
#include "trestle/deepspeed/config/config.h"

// Configurations for the tests.
namespace trestle::deepspeed {

// The stage-2 example of docs/deepspeed.md.
inline const char* const stage_2 = R"({
  "train_batch_size": 64,
  "zero_optimization": {
    "stage": 2,
    "allgather_partitions": true,
    "reduce_scatter": true,
    "allgather_bucket_size": 5e8,
    "reduce_bucket_size": 5e8
  },
  "fp16": { "enabled": true }
})";

inline const char* const everything = R"({
  // a comment
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2,
  "dataloader_drop_last": true, "gradient_clipping": 1.0, "steps_per_print": 10,
  "communication_data_type": "fp32", "prescale_gradients": false,
  "zero_optimization": { "stage": 3, "overlap_comm": true, "reduce_bucket_size": 1000000, "mics_shard_size": 2,
                         "stage3_max_live_parameters": 1e9, "sub_group_size": 1e9,
                         "offload_optimizer": { "device": "cpu", "pin_memory": true, "buffer_count": 4 },
                         "offload_param": { "device": "cpu" } },
  "fp16": { "enabled": true, "loss_scale": 0, "initial_scale_power": 10, "loss_scale_window": 500, "hysteresis": 3,
            "consecutive_hysteresis": true, "min_loss_scale": 0.25 },
  "bf16": { "enabled": false },
  "optimizer": { "type": "AdamW", "params": { "lr": 1.23456789e-3, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1 } },
  "scheduler": { "type": "WarmupDecayLR", "params": { "warmup_min_lr": 0, "warmup_max_lr": 3e-4, "warmup_num_steps": 100,
                                                      "total_num_steps": 1e4, "warmup_type": "linear" } },
  "activation_checkpointing": { "partition_activations": false, "number_checkpoints": 4 },
  "checkpoint": { "tag_validation": "Warn", "load_universal": false },
  "wall_clock_breakdown": false, "tensorboard": { "enabled": true, "output_path": "x" }, "amp": { "enabled": false }
})";

inline std::string config_error(const std::string& json, int ranks = 1) {
  try {
    parse_deepspeed_config(json, "ds_config.json", ranks);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// A complete file with the tested part added.
inline std::string with(const std::string& rest) {
  return R"({"train_batch_size": 8)" + (rest.empty() ? "" : ", " + rest) + "}";
}
inline DeepspeedConfig parse(const std::string& json, int ranks = 1) {
  return parse_deepspeed_config(json, "ds_config.json", ranks);
}
inline std::string zero(const std::string& keys) {
  return with(R"("zero_optimization": {)" + keys + "}");
}
inline std::string optimizer(const std::string& type, const std::string& params) {
  return with(R"("optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}");
}
inline std::string scheduler(const std::string& type, const std::string& params) {
  return with(R"("scheduler": {"type": ")" + type + R"(", "params": {)" + params + "}}");
}

}  // namespace trestle::deepspeed
