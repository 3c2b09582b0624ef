#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/options.h"
#include "trestle/view/bars.h"

// What data parallel, ZeRO-1 to 3, FSDP and HSDP hold and move for one model, measured beside the formulas: the numbers behind
// `trestle levels`.
//
//   const auto rows = trestle::train::measure_levels(make_net, {512}, {.ranks = 4});
//   for (const auto& row : rows) std::cout << row.name << " " << row.measured.rest << " of " << row.formula.rest << "\n";
namespace trestle::train {

struct LevelsOptions {
  int ranks = 4;            // 2 to 64: threads of this process, each with a virtual device
  int replicate = 0;        // rows of HSDP's mesh; 0 = 2 where the ranks allow it, else no HSDP
  int steps = 3;            // that are measured, after two to warm up; at least 1
  std::int64_t batch = 32;  // of all ranks together; the plain model has all of it
  optim::OptimizerOptions optimizer = {.name = "adamw"};
  // As ShardOptions::buckets.size; 0 = 25 MiB, or an eighth of the weights where that is less, so that there are several.
  Bytes bucket = 0;
};

struct LevelRow {
  std::string name;    // "ZeRO-1"
  std::string preset;  // the header that has it: "zero1.h"; empty for the plain model
  ShardLevel level = ShardLevel::None;
  int ranks = 1, replicate = 1, shard = 1;  // ranks: all; the others: of its mesh
  std::string per_parameter;                // bytes, in words: "8 + 8/N"

  struct Formula {
    double rest = 0;   // bytes of weights, gradients and the optimizer's state
    double moved = 0;  // bytes that a rank sends in a step where reductions and gathers go in rings
  } formula;
  // Of all ranks the most. Zeros in a row on paper.
  struct Measured {
    Bytes rest = 0;      // held after a step, gradients included
    Bytes peak = 0;      // the most in a step
    double moved = 0;    // from the bytes that the engine counted in its collectives
    double seconds = 0;  // of a step, the median
  } measured;
};

// Bytes an element that the optimizer remembers, over those of a parameter: adamw 2, sgd 0.
int optimizer_states(const optim::OptimizerOptions& optimizer);

// The plain model, DDP, ZeRO-1, ZeRO-2, FSDP and HSDP, for so many parameters of fp32. Throws UsageError for numbers that
// cannot be.
std::vector<LevelRow> levels_on_paper(std::int64_t parameters, const LevelsOptions& options);

// Trains each of them for a few steps on random inputs of these sizes ("without the batch"). `make` makes a model, each time
// a new one with the same weights. Installs virtual devices. Throws as levels_on_paper(), and what the model does.
using MakeNet = std::function<nn::Layers()>;
std::vector<LevelRow> measure_levels(const MakeNet& make, const std::vector<std::int64_t>& input,
                                     const LevelsOptions& options,
                                     const std::function<void(const LevelRow&)>& done = {});

view::BarsPicture levels_picture(const std::vector<LevelRow>& rows, const std::string& title);

// One object with an array "levels".
std::string levels_json(const std::vector<LevelRow>& rows, std::int64_t parameters);

}  // namespace trestle::train
