#pragma once

#include "trestle/plan/gpt/gpt_model.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/strategy.h"

// The time of a GPT's layers, by formulas, for one micro-batch on one tensor rank. Seconds.
namespace trestle::plan {

struct LayerSplit {
  double micro_batch = 1;  // b, examples
  int tensor = 1;          // t
  bool sequence_parallel = false;
  BlockRecompute recompute = BlockRecompute::None;
};

struct PassSeconds {
  double forward = 0;
  double backward = 0;          // with what it recomputes
  double forward_messages = 0;  // of the tensor group, a part of `forward`
  double backward_messages = 0;

  double sum() const { return forward + backward; }
};

// A block, for forward and backward together:
//
//     ((products + memory)^4 + floor^4)^(1/4) + 4 all-reduces of 2 b s h bytes
//     products = (3 (24 b s h^2 + 4 b s^2 h) / t + 18 product_cost) / (matrix_efficiency x peak)
//     memory   = (score_passes 2 b s^2 a / t + activation_passes (10 + 24 / t) s b h) / bandwidth
//     floor    = layer_floor, and with t > 1 tensor_floor more
//
// A third of the compute is the forward's, as are two of the all-reduces. Whole blocks that are
// recomputed repeat the forward in the backward. Selective recomputation repeats the two products
// of attention and a third of its reads and writes of scores. On token shards the bytes are
// 34 / t s b h, and gathers and scatters move the bytes of the all-reduces. For other widths than
// those of published GPT, 24 is 8 + 4 f / h, and 34 is 10 more than that.
//
// Models other than published GPT have the FLOPs of their own matrices (gpt_model.h); those like
// Llama have 27 products. With flash attention scores take no time, and the bytes of
// the other passes are those of kept_by_block() (transformer_memory.h). Machine::hidden_tensor is
// the share of the messages that is hidden behind computation.
PassSeconds block_seconds(const GptModel& model, const LayerSplit& split, const Machine& machine);

// The compute of a block in forward and backward without recomputation: the first line's first
// term, or the seconds of the machine's KnownBlock with these sizes.
double block_compute(const GptModel& model, const LayerSplit& split, const Machine& machine);

// The head and the loss: 6 b s h V / t FLOPs at head_efficiency, and an all-reduce of the gradient.
PassSeconds head_seconds(const GptModel& model, const LayerSplit& split, const Machine& machine);

// The embedding: an all-reduce of its output. Its reads are not counted.
PassSeconds embedding_seconds(const GptModel& model, const LayerSplit& split,
                              const Machine& machine);

}  // namespace trestle::plan
