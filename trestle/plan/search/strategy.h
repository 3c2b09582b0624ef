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

// The type of weights, activations and products. Bf16 and Fp16 keep an fp32 copy of the weights.
enum class Precision { Own, Fp32, Bf16, Fp16 };  // Own: the model's, PlannedModel::precisions()

std::string_view to_string(Precision precision);
// Throws UsageError for any word but "own", "fp32", "bf16" and "fp16".
Precision parse_precision(std::string_view word);

struct Strategy {
  int tensor = 1;    // ranks that split each layer
  int pipeline = 1;  // ranks with stages of their own: one each, or what the schedule needs
  int data = 1;      // replicas, or ranks that shard their state
  int level = 0;     // what the data ranks shard, the level of ZeRO: 0 nothing, 1 the optimizer's
                     // state, 2 gradients too, 3 parameters too
  // HSDP, with a level above 0: the data ranks form this number of rows. The ranks of a row shard
  // the state, and rows replicate it.
  int replicate = 1;
  bool offload = false;  // with a level above 0: the shards are in the host's memory
  int micro_batch = 1;   // examples
  BlockRecompute recompute = BlockRecompute::None;
  // With recompute: only this number of blocks of each stage, the first ones, or only this number
  // of stages, the first ones. 0 = all.
  int recompute_layers = 0;
  int recompute_stages = 0;
  std::string schedule = "1f1b";   // a name of schedule::known_schedules()
  int chunks = 1;                  // of a stage: above 1, 1f1b is interleaved
  bool sequence_parallel = false;  // tensor ranks split the tokens of norms and dropout
  Precision precision = Precision::Own;

  int devices() const { return tensor * pipeline * data; }
  // The data ranks that shard one copy of the state.
  int shards() const { return level > 0 ? data / replicate : 1; }
  friend bool operator==(const Strategy&, const Strategy&) = default;
};

// Whether its schedule has one stage on each rank, and neither I nor W. Formulas know such
// schedules alone.
bool has_plain_schedule(const Strategy& strategy);

// The micro-batches of a step: batch / (data x micro_batch), rounded down.
std::int64_t micro_batches_of(const Strategy& strategy, std::int64_t batch);

// "tensor 8 · pipeline 2 · data 32 · micro-batch 4 · recompute all · 1f1b". It leaves out what has
// no effect. Strategies that differ in what has an effect have different texts.
std::string to_string(const Strategy& strategy);

// The degrees that a search keeps. Nothing = all are searched.
struct Kept {
  std::optional<int> tensor = {}, pipeline = {}, data = {}, level = {}, replicate = {},
                     micro_batch = {}, recompute_layers = {}, recompute_stages = {}, chunks = {};
  std::optional<BlockRecompute> recompute = {};
  std::optional<std::string> schedule = {};
  std::optional<bool> sequence_parallel = {}, offload = {};
  // Precision::Own unless given: numbers change with it.
  std::optional<Precision> precision = {};
  bool any_precision = false;  // "precision=any": all that the model has
};

// "tensor=8,pipeline=2,micro_batch=4,recompute=all". Throws UsageError for an unknown key or value,
// and for a key that is given twice with different values.
Kept parse_kept(const std::vector<std::string>& words);
std::string to_string(const Kept& kept);

// Throws UsageError for a number that parse_kept() would refuse, and for an unknown schedule.
void check(const Kept& kept);

// Whether it names tensor, micro_batch, recompute, and pipeline or data. It then describes one run:
// what it leaves out has the values of Strategy(), and is not searched.
bool describes_run(const Kept& kept);

}  // namespace trestle::plan
