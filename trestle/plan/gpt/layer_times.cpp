#include "trestle/plan/gpt/layer_times.h"

#include <cmath>

#include "trestle/plan/gpt/gpt_block.h"

namespace trestle::plan {
namespace {

struct Sizes {
  double b, s, h, a, t;
};

Sizes sizes_of(const GptModel& model, const LayerSplit& split) {
  return {split.micro_batch, static_cast<double>(model.sequence), static_cast<double>(model.hidden),
          static_cast<double>(model.heads), static_cast<double>(split.tensor)};
}

double product_rate(const Machine& machine) {
  return machine.transformer.matrix_efficiency.value * machine.peak.value;
}

// All passes of a block over its scores. Flash attention stores none.
double score_seconds(const GptModel& model, const Sizes& n, const Machine& machine) {
  if (model.flash) return 0;
  return machine.transformer.score_passes.value * 2 * n.b * n.s * n.s * n.a / n.t /
         machine.memory_bandwidth.value;
}

double message_of_tensor_group(const Sizes& n, const Machine& machine) {
  const int ranks = static_cast<int>(n.t);
  if (ranks == 1) return 0;
  const double hidden = machine.hidden_tensor ? machine.hidden_tensor->value : 0;
  return (1 - hidden) * all_reduce_seconds(machine, 2 * n.b * n.s * n.h,
                                           {.ranks = ranks, .per_node = machine.devices_per_node});
}

// In forward and backward: six in the forward, nine with a gated MLP and separate matrices for
// queries, keys and values, and each twice more in the backward.
double products_of(const GptModel& model) {
  return model.family == GptModel::Family::Llama ? 27 : 18;
}

// The bytes that a block writes for its backward, without scores, in units of s b h.
double bytes_of_token(const GptModel& model, LayerSplit split, const Sizes& n) {
  split.recompute = BlockRecompute::None;
  if (model.flash) return activation_bytes(model, split) / (n.s * n.b * n.h);
  const double split_bytes = split_bytes_of_token(model, split.recompute) / n.h;
  return split.sequence_parallel ? (10 + split_bytes) / n.t : 10 + split_bytes / n.t;
}

const KnownBlock* known_block(const GptModel& model, const LayerSplit& split,
                              const Machine& machine) {
  for (const KnownBlock& block : machine.blocks)
    if (model.is_plain() && !model.flash && block.hidden == model.hidden &&
        block.heads == model.heads && block.sequence == model.sequence &&
        block.micro_batch == split.micro_batch && block.tensor == split.tensor &&
        !split.sequence_parallel)
      return &block;
  return nullptr;
}

}  // namespace

double block_compute(const GptModel& model, const LayerSplit& split, const Machine& machine) {
  if (const KnownBlock* known = known_block(model, split, machine)) return known->seconds;
  const Sizes n = sizes_of(model, split);
  const TransformerTimes& times = machine.transformer;
  const double flops = 3 * (matrix_flops(model) * n.b * n.s + 4 * n.b * n.s * n.s * n.h) / n.t;
  const double multiply =
      (flops + products_of(model) * times.product_cost.value) / product_rate(machine);
  const double memory = score_seconds(model, n, machine) +
                        times.activation_passes.value * bytes_of_token(model, split, n) * n.s *
                            n.b * n.h / machine.memory_bandwidth.value;
  const double floor = times.layer_floor.value + (split.tensor > 1 ? times.tensor_floor.value : 0);
  return std::pow(std::pow(multiply + memory, 4) + std::pow(floor, 4), 0.25);
}

PassSeconds block_seconds(const GptModel& model, const LayerSplit& split, const Machine& machine) {
  const Sizes n = sizes_of(model, split);
  const double compute = block_compute(model, split, machine);
  const double messages = 2 * message_of_tensor_group(n, machine);
  PassSeconds pass{.forward = compute / 3 + messages,
                   .backward = 2 * compute / 3 + messages,
                   .forward_messages = messages,
                   .backward_messages = messages};
  if (split.recompute == BlockRecompute::All) {
    pass.backward += pass.forward;
    pass.backward_messages += messages;
  } else if (split.recompute == BlockRecompute::Selective) {
    const double flops = 4 * n.b * n.s * n.s * n.h / n.t;
    pass.backward += (flops + 2 * machine.transformer.product_cost.value) / product_rate(machine) +
                     score_seconds(model, n, machine) / 3;
  }
  return pass;
}

PassSeconds head_seconds(const GptModel& model, const LayerSplit& split, const Machine& machine) {
  const Sizes n = sizes_of(model, split);
  const double forward = 2 * n.b * n.s * n.h * static_cast<double>(model.vocabulary) / n.t /
                         (machine.transformer.head_efficiency.value * machine.peak.value);
  const double message = message_of_tensor_group(n, machine);
  return {.forward = forward, .backward = 2 * forward + message, .backward_messages = message};
}

PassSeconds embedding_seconds(const GptModel& model, const LayerSplit& split,
                              const Machine& machine) {
  const double message = message_of_tensor_group(sizes_of(model, split), machine);
  return {.forward = message, .forward_messages = message};
}

}  // namespace trestle::plan
