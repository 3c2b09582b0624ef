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

// Bytes that a block with a written softmax keeps of a token and that tensor ranks split: the
// inputs of attention's products and of the MLP's last two steps, 8 h + 4 f. GPT as published has
// 24 h of them. Fewer heads of keys are repeated for the products, so they save bytes only where
// these are recomputed: 4 h + 4 h kv / a + 4 f.
double split_bytes_of_token(const GptModel& model, BlockRecompute recompute);

// The bytes that a block keeps of one micro-batch from forward to backward, in 16 bits. With a
// written softmax: the forms of Korthikanti et al. 2022, with dropout at three places and
// split_bytes_of_token() in the place of 24 h. Flash attention: kept_by_block()
// (transformer_memory.h), without dropout.
double activation_bytes(const GptModel& model, const LayerSplit& split);

}  // namespace trestle::plan
