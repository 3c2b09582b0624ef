#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/deepspeed/config/rate.h"
#include "trestle/optim/options/optimizer_options.h"

// A run as described by DeepSpeed's JSON configuration. Needs no torch.
//
//   DeepspeedConfig config = read_deepspeed_config("ds_config.json", /*ranks=*/4);
//   std::cout << to_text(config);
//
// Members have the names and units used elsewhere in trestle. Keys that the file leaves out have
// DeepSpeed's defaults. docs/deepspeed.md lists the keys and their meaning.
namespace trestle::deepspeed {

// DeepSpeed 0.19 clips gradients at this norm if the file does not name gradient_clipping; 0.16 did
// not clip.
inline constexpr double default_clip_grad_norm = 1;

// The loss scale of fp16.
struct DeepspeedScaler {
  bool dynamic = true;
  double initial_scale = 65536;  // the fixed scale if not dynamic
  double growth_factor = 2, backoff_factor = 0.5;
  std::int64_t growth_interval = 1000;  // consecutive good steps before the scale grows
  std::int64_t hysteresis = 2;          // overflows before it shrinks
  // True: every good step restarts the count of overflows. False: only a growth of the scale does.
  bool consecutive_hysteresis = false;
  double lowest_scale = 1;
};

struct DeepspeedConfig {
  std::string file;
  int ranks = 1;  // data-parallel ranks

  // In examples. train_batch, for one optimizer step, is micro_batch * accumulate * ranks.
  std::int64_t train_batch = 0, micro_batch = 0, accumulate = 0;
  bool drop_last = false;  // drop an epoch's last batch if it is smaller

  std::int64_t stage = 0;
  std::string level() const;                 // none, optimizer_state, gradients or parameters
  std::int64_t reduce_bucket = 500'000'000;  // elements, not bytes
  bool ignore_unused = true;                 // false: a parameter without a gradient is an error
  std::int64_t shard_ranks = 0;              // ranks in a shard group (mics_shard_size); 0: all
  // Elements of a rank in a sub-group (sub_group_size), for DeepSpeed's form of a checkpoint.
  std::int64_t sub_group = 1'000'000'000;
  bool offload_optimizer = false, offload_parameters = false;  // to the CPU

  std::string precision = "fp32";  // of computation: fp32, fp16, bf16; weights stay fp32
  std::string communication = {};  // dtype of gradient communication; empty: not given
  DeepspeedScaler scaler = {};     // for fp16

  std::optional<optim::OptimizerOptions> optimizer = {};  // nothing: the program's own
  std::optional<DeepspeedSchedule> schedule = {};
  double clip_grad_norm = 0;      // 0: no clipping
  bool clips_by_default = false;  // the file is silent, and DeepSpeed clips then

  // A line for each key that has no effect in trestle, with the reason.
  std::vector<std::string> without_effect = {};
  // A line for each key whose meaning differs from its name.
  std::vector<std::string> notes = {};
};

// Reads a JSON file (comments are allowed) for `ranks` data-parallel ranks. Throws UsageError for a
// missing file, invalid JSON, unknown keys (with the nearest known one), wrong types, values out of
// range, "auto", batch sizes that contradict each other, and features that trestle lacks. The
// message has a line for every problem in the file.
DeepspeedConfig read_deepspeed_config(const std::filesystem::path& path, int ranks);

// The same for text; `file` is its name in messages.
DeepspeedConfig parse_deepspeed_config(std::string_view json, const std::string& file, int ranks);

// The text for settings that the file leaves out.
struct DeepspeedOwn {
  std::string optimizer = "the program's own";
  std::string schedule = "none";
  std::string clipping = {};   // instead of the file's
  std::string precision = {};  // instead of the file's
};

// The resolved configuration as text, a line for each setting, and the keys without effect.
std::string to_text(const DeepspeedConfig& config, const DeepspeedOwn& own = {});

}  // namespace trestle::deepspeed
