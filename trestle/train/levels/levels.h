#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/options/options.h"
#include "trestle/simulate/link.h"
#include "trestle/train/levels/tensor_level.h"
#include "trestle/view/bars.h"

// The memory and the traffic of data parallelism, ZeRO-1 to 3, FSDP, HSDP and tensor parallelism
// for one model, measured and by formula: the numbers of `trestle levels`.
//
//   const auto rows = trestle::train::measure_levels(make_net, {512}, {.ranks = 4});
//   for (const auto& row : rows)
//     std::cout << row.name << " " << row.measured.rest << " of " << row.formula.rest << "\n";
namespace trestle::train {

struct LevelsOptions {
  int ranks = 4;            // 2 to 64: threads of this process, each with a virtual device
  int replicate = 0;        // rows of HSDP's mesh; 0 = 2 if the ranks allow it, else no HSDP
  int steps = 3;            // measured, after two to warm up; at least 1
  std::int64_t batch = 32;  // of all ranks together, and of the plain model
  // The random inputs are token ids below this number; 0 = they are numbers from 0 to 1.
  std::int64_t ids = 0;
  optim::OptimizerOptions optimizer = {.name = "adamw"};
  // As ShardOptions::buckets.size; 0 = 25 MiB or an eighth of the weights, whichever is less, so
  // that there are several buckets.
  Bytes bucket = 0;
  // Level Parameters, as in ShardOptions.
  ShardUnits units = {};
  Reshard reshard_after_forward = true;
  bool shards_on_cpu = false;
  // Activation checkpointing of the model, at each level and in the plain one: of layers by name
  // (parallel/checkpoint_layers.h), or in segments of equal size. At most one of the two.
  std::vector<std::string> checkpoint = {};
  int checkpoint_segments = 0;
  // The link of each host, for LevelRow::Formula::link_seconds: each rank is on a host of its own,
  // but a row of HSDP's mesh is on one.
  std::optional<simulate::Link> link = {};
  // Adds the row "tensor". Nothing = the model's layers are not split.
  std::optional<TensorLevel> tensor = {};
};

// The parameters of a model. A tied one counts once.
struct LevelsWeights {
  std::int64_t trained = 0;  // fp32 parameters, with a gradient and the optimizer's state
  std::int64_t frozen = 0;   // parameters without either
  Bytes frozen_bytes = 0;    // of the frozen ones, in their own types
  // The part of frozen_bytes in the layers before the first one that is trained. No backward runs
  // through them.
  Bytes frozen_first_bytes = 0;
};
LevelsWeights weights_of(const nn::Layers& model);

struct LevelRow {
  std::string name;    // "ZeRO-1"
  std::string preset;  // its header: "zero1.h"; empty for the plain model
  ShardLevel level = ShardLevel::None;
  // replicate x shard x tensor is its mesh.
  int ranks = 1, replicate = 1, shard = 1, tensor = 1;
  std::string per_parameter;  // bytes of a trained one as text: "8 + 8/N"

  struct Formula {
    // Bytes of weights, gradients and the optimizer's state. Frozen weights are whole on each rank,
    // or a share of them at level Parameters.
    double rest = 0;
    double moved = 0;  // bytes that a rank sends in a step, with ring reductions and gathers
    // The least time that a step's messages take on LevelsOptions::link: bytes / bandwidth, and the
    // latencies of one collective of each kind. 0 without a link.
    double link_seconds = 0;
  } formula;
  // The maximum over the ranks. Zeros in a row that is not measured.
  struct Measured {
    Bytes rest = 0;      // held after a step, gradients included
    Bytes peak = 0;      // the most in a step
    double moved = 0;    // from the bytes that the engine counts in its collectives
    double seconds = 0;  // of a step, the median
  } measured;
};

// The size of the optimizer's state as a multiple of the parameters: adamw 2, sgd 0.
int optimizer_states(const optim::OptimizerOptions& optimizer);

// The rows of the plain model, DDP, ZeRO-1, ZeRO-2, FSDP, HSDP and tensor ranks, by formula. Throws
// UsageError for invalid options, and for a model without trained parameters.
std::vector<LevelRow> levels_on_paper(const LevelsWeights& weights, const LevelsOptions& options);
// The same for `parameters` trained ones.
std::vector<LevelRow> levels_on_paper(std::int64_t parameters, const LevelsOptions& options);

// Trains each of them for a few steps on random inputs; `input`: their sizes without the batch.
// `make` returns a new model with the same weights at each call. Installs virtual devices. Throws
// as levels_on_paper(), and what the model throws.
using MakeNet = std::function<nn::Layers()>;
std::vector<LevelRow> measure_levels(const MakeNet& make, const std::vector<std::int64_t>& input,
                                     const LevelsOptions& options,
                                     const std::function<void(const LevelRow&)>& done = {});

view::BarsPicture levels_picture(const std::vector<LevelRow>& rows, const std::string& title);

// One JSON object with an array "levels".
std::string levels_json(const std::vector<LevelRow>& rows, const LevelsWeights& weights);

}  // namespace trestle::train
