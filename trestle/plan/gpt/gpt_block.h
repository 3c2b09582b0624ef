#pragma once

#include "trestle/plan/gpt/gpt_model.h"
#include "trestle/plan/gpt/layer_times.h"

// The parameters and the activations of a model's blocks on one tensor rank. Inside of plan. Not
// installed.
namespace trestle::plan {

// Matrices and their first biases are split; norms and the other biases are whole.
double block_parameters(const GptModel& model, int tensor);

// Those of a table with a row for each word. Ranks may have shards of different sizes: the largest.
double table_parameters(const GptModel& model, int tensor);

// The bytes that a block keeps of one micro-batch from forward to backward, in 16 bits. GPT with a
// written softmax: the forms of Korthikanti et al. 2022, with dropout at three places. Others, and
// flash attention: kept_by_block() (transformer_memory.h), without dropout.
double activation_bytes(const GptModel& model, const LayerSplit& split);

}  // namespace trestle::plan
