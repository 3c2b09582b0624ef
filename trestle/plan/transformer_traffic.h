#pragma once

#include "trestle/base/traffic.h"
#include "trestle/plan/transformer_memory.h"

// The messages of a transformer's tensor ranks for one micro-batch, by formulas: those of
// Megatron-LM (Shoeybi et al. 2019, Korthikanti et al. 2022).
// tensor_parallel::TensorRanks::traffic() counts it in a run.
//
//   const plan::StepTraffic step = plan::traffic_of_block(sizes, {.tensor = 4, .sequence = true});
//   step.sum().sent(4);   // bytes that leave each rank
namespace trestle::plan {

struct StepTraffic {
  Traffic forward = {};
  Traffic backward = {};
  Traffic sum() const { return forward + backward; }
};

// A block. With S = batch x tokens x width numbers of the products' type:
//
//     whole tokens    forward: 2 all-reduces of S
//                     backward: 2 all-reduces of S
//     token shards    forward: 2 all-gathers and 2 reduce-scatters of S
//                     backward: the same, 2 more all-gathers for the gradients of the weights, and
//                     2 all-reduces of the gradients of the norms' parameters
//
// Recomputed blocks repeat the forward's in the backward, and with BlockSettings::split_input they
// add an all-gather of their input, S numbers of the sums' type. Fewer heads of keys and values
// than ranks add an all-gather of keys and values in the forward, and a reduce-scatter in the
// backward. One rank exchanges nothing. Throws as kept_by_block().
StepTraffic traffic_of_block(const BlockSizes& sizes, const BlockSettings& settings);

// The parts of a model around its blocks.
struct VocabularySettings {
  std::int64_t rows = 1;         // of the tables: models::table_rows()
  bool joins_scores = false;     // SplitScores::Joined; otherwise the loss is computed on shards
  bool label_smoothing = false;  // of that loss
};

// The embedding, the last norm, the head, and with shards of the scores the loss:
//
//     embedding       forward: 1 all-reduce of S. On token shards GPT also gathers the gradient in
//                     the backward; Llama has a reduce-scatter and a gather.
//     head            backward: 1 all-reduce of S. On token shards: an all-gather in the forward, a
//                     reduce-scatter and an all-gather in the backward.
//     loss            forward: 2 all-reduces, together of 3 fp32 numbers for each token, 4 with
//                     label smoothing. Megatron-LM sends three of one number each.
StepTraffic traffic_of_vocabulary(const BlockSizes& sizes, const BlockSettings& settings,
                                  const VocabularySettings& vocabulary);

}  // namespace trestle::plan
