#include "trestle/pipeline/execute/rank_inputs.h"

#include <algorithm>
#include <cstddef>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::pipeline {
namespace {

constexpr int counted_inputs = 64;

}  // namespace

std::uint64_t input_bits(const nn::Graph& graph, const nn::Values& batch) {
  std::uint64_t bits = 0;
  for (int i = 0; i < std::min(graph.inputs, counted_inputs); ++i) {
    if (batch[static_cast<std::size_t>(i)].defined()) bits |= std::uint64_t{1} << i;
  }
  return bits;
}

void check_first_rank_inputs(const nn::Graph& graph, const nn::Values& batch, int rank) {
  const int inputs = graph.inputs;
  if (inputs == 0 || inputs > counted_inputs || input_bits(graph, batch) != 0) return;
  throw UsageError(text("rank ", rank, ", the first of the pipeline, has no input: ",
                        inputs == 1 ? "it is None" : text("all ", inputs, " are None")),
                   {.rank = rank,
                    .hint = "Pass the model's inputs on the first rank, and on each rank whose "
                            "stages use one; other ranks may pass None."});
}

void check_stage_inputs(const PartitionedModel& model, const nn::Values& batch,
                        std::uint64_t firsts, int rank, int first_rank) {
  for (const Stage& stage : model.stages) {
    for (const auto& edge : model.graph.edges) {
      const auto input = static_cast<std::size_t>(edge.from_output);
      if (edge.from_layer != nn::model_input || edge.to_layer < stage.plan().first_layer ||
          edge.to_layer >= stage.plan().last_layer || input >= counted_inputs ||
          batch[input].defined() || (firsts >> input & 1U) == 0)
        continue;
      throw UsageError(text("input ", input, " is None on rank ", rank, ", whose stage ",
                            stage.index(), " uses it, and a tensor on rank ", first_rank),
                       {.layer = model.graph.layers[static_cast<std::size_t>(edge.to_layer)].name,
                        .rank = rank,
                        .hint = "Pass the model's inputs on all ranks whose stages use them."});
    }
  }
}

}  // namespace trestle::pipeline
