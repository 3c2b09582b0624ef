#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/optim/options/optimizer_options.h"

// A run as DeepSpeed's JSON configuration says it. No torch in here.
//
//   DeepspeedConfig config = read_deepspeed_config("ds_config.json", /*ranks=*/4);
//   std::cout << to_text(config);
//
// Numbers have the names and the units that the rest of trestle gives them; what the file leaves out
// has DeepSpeed's default. docs/deepspeed.md lists the keys and what each becomes.
namespace trestle::recipe {

// How the gradients of fp16 are kept in its range.
struct DeepspeedScaler {
  bool dynamic = true;
  double initial_scale = 65536;  // the only one where it is not dynamic
  double growth_factor = 2, backoff_factor = 0.5;
  std::int64_t growth_interval = 1000;  // good steps in a row before the scale grows
  std::int64_t hysteresis = 2;          // overflows before it shrinks
  // Whether each good step, and not only each growth, makes the overflows count from 0 again.
  bool consecutive_hysteresis = false;
  double lowest_scale = 1;
};

// One of DeepSpeed's schedules, with its own names; only those of its type mean anything.
struct DeepspeedSchedule {
  std::string type;  // WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest
  // WarmupLR, WarmupDecayLR; WarmupCosineLR has shares of the optimizer's rate instead.
  double warmup_min_lr = 0, warmup_max_lr = 1e-3;
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  std::int64_t warmup_num_steps = 1000;
  std::string warmup_type = "log";   // or linear
  std::int64_t total_num_steps = 0;  // WarmupDecayLR, WarmupCosineLR
  // OneCycle
  double cycle_min_lr = 0, cycle_max_lr = 0;
  std::int64_t cycle_first_step_size = 2000, cycle_second_step_size = 2000;
  std::int64_t cycle_first_stair_count = 0, cycle_second_stair_count = 0;
  std::int64_t decay_step_size = 0;
  double decay_lr_rate = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9, decay_mom_rate = 0;
  // LRRangeTest
  double lr_range_test_min_lr = 1e-3, lr_range_test_step_rate = 1;
  std::int64_t lr_range_test_step_size = 2000;
  bool lr_range_test_staircase = false;
};

struct DeepspeedConfig {
  std::string file;
  int ranks = 1;  // that share the batch

  // Examples: train_batch is micro_batch * accumulate * ranks, one step of the optimizer.
  std::int64_t train_batch = 0, micro_batch = 0, accumulate = 0;
  bool drop_last = false;  // the last batch of an epoch, where it is smaller

  std::int64_t stage = 0;
  std::string level() const;  // none, optimizer_state, gradients, parameters: what the stage shards
  std::int64_t reduce_bucket = 500'000'000;  // elements, not bytes
  bool ignore_unused =
      true;  // parameters that a backward does not reach; otherwise they are an error
  std::int64_t shard_ranks = 0;  // ranks that parameters are sharded over (mics_shard_size); 0: all
  bool offload_optimizer = false, offload_parameters = false;  // to the CPU

  std::string precision = "fp32";  // fp16, bf16: what is computed in; weights are kept in fp32
  std::string communication = {};  // fp32, fp16, bf16: what gradients travel in; empty: not said
  DeepspeedScaler scaler = {};     // of fp16

  std::optional<optim::OptimizerOptions> optimizer = {};  // none: the program gives its own
  std::optional<DeepspeedSchedule> schedule = {};
  double clip_grad_norm = 0;  // 0: no clipping

  // A line for each key of the file that changes nothing in trestle, with the reason.
  std::vector<std::string> without_effect = {};
  // A line for each thing that was read otherwise than its name says.
  std::vector<std::string> notes = {};
};

// Reads a JSON file (comments are allowed) for that many data-parallel ranks. Throws UsageError where
// there is none, for what is not JSON, unknown keys (with the nearest known one), wrong types, values
// out of range, "auto", terms of the batch that contradict each other, and what trestle cannot do:
// every problem of the file at once, each on a line that names it.
DeepspeedConfig read_deepspeed_config(const std::filesystem::path& path, int ranks);

// The same from text; `file` is what the messages call it.
DeepspeedConfig parse_deepspeed_config(std::string_view json, const std::string& file, int ranks);

// What stands there of what a file leaves out.
struct DeepspeedOwn {
  std::string optimizer = "the program's own";
  std::string schedule = "none";
  std::string clipping = "none";
  std::string precision = {};  // instead of the file's
};

// The resolved configuration as a person reads it, a line each, and what has no effect.
std::string to_text(const DeepspeedConfig& config, const DeepspeedOwn& own = {});

}  // namespace trestle::recipe
