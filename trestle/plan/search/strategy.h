#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// A way to train a model on many devices.
namespace trestle::plan {

enum class BlockRecompute {
  None,
  Selective,  // the core of attention
  All,        // whole blocks
};

std::string_view to_string(BlockRecompute recompute);
// Throws UsageError for any word but "none", "selective" and "all".
BlockRecompute parse_block_recompute(std::string_view word);

struct Strategy {
  int tensor = 1;    // ranks that split each layer
  int pipeline = 1;  // stages
  int data = 1;      // replicas, or ranks that shard their state
  int level = 0;     // what the data ranks shard, the level of ZeRO: 0 nothing, 1 the optimizer's
                     // state, 2 gradients too, 3 parameters too
  int micro_batch = 1;  // examples
  BlockRecompute recompute = BlockRecompute::None;
  std::string schedule = "1f1b";   // a name of schedule::known_schedules()
  int chunks = 1;                  // of a stage: above 1, 1f1b is interleaved
  bool sequence_parallel = false;  // tensor ranks split the tokens of norms and dropout

  int devices() const { return tensor * pipeline * data; }
  friend bool operator==(const Strategy&, const Strategy&) = default;
};

// The micro-batches of a step: batch / (data x micro_batch), rounded down.
std::int64_t micro_batches_of(const Strategy& strategy, std::int64_t batch);

// "tensor 8 · pipeline 2 · data 32 · micro-batch 4 · recompute all · 1f1b". It leaves out what has
// no effect.
std::string to_string(const Strategy& strategy);

// The degrees that a search keeps. Nothing = all are searched.
struct Kept {
  std::optional<int> tensor = {}, pipeline = {}, data = {}, level = {}, micro_batch = {},
                     chunks = {};
  std::optional<BlockRecompute> recompute = {};
  std::optional<std::string> schedule = {};
  std::optional<bool> sequence_parallel = {};
};

// "tensor=8,pipeline=2,micro_batch=4,recompute=all". Throws UsageError for an unknown key or value,
// and for a key that is given twice with different values.
Kept parse_kept(const std::vector<std::string>& words);
std::string to_string(const Kept& kept);

// Whether it names tensor, micro_batch, recompute, and pipeline or data. It then describes one run:
// what it leaves out has the values of Strategy(), and is not searched.
bool describes_run(const Kept& kept);

}  // namespace trestle::plan
