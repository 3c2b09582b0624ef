#include "trestle/plan/gpt/gpt_block.h"

#include "trestle/plan/transformer_memory.h"

namespace trestle::plan {
namespace {

PublishedForm form_of(const LayerSplit& split) {
  using Form = PublishedForm;
  const bool shards = split.sequence_parallel;
  switch (split.recompute) {
    case BlockRecompute::None:
      return shards ? Form::TensorSequence : Form::Tensor;
    case BlockRecompute::Selective:
      return shards ? Form::TensorSequenceSelective : Form::TensorSelective;
    case BlockRecompute::All:
      break;
  }
  return shards ? Form::WholeSplit : Form::Whole;
}

BlockSizes block_sizes(const GptModel& model) {
  return {.style = model.family == GptModel::Family::Llama ? BlockSizes::Style::Llama
                                                           : BlockSizes::Style::Gpt2,
          .batch = 1,
          .tokens = model.sequence,
          .width = model.hidden,
          .heads = model.heads,
          .kv_heads = model.heads_of_keys(),
          .head_size = model.hidden / model.heads,
          .mlp = model.inner()};
}

BlockSettings settings_of(const LayerSplit& split) {
  using Recompute = BlockSettings::Recompute;
  return {.recompute = split.recompute == BlockRecompute::None        ? Recompute::Nothing
                       : split.recompute == BlockRecompute::Selective ? Recompute::Attention
                                                                      : Recompute::Block,
          .tensor = split.tensor,
          .sequence = split.sequence_parallel,
          .split_input = split.sequence_parallel};
}

}  // namespace

double block_parameters(const GptModel& model, int tensor) {
  if (model.family == GptModel::Family::Llama)
    return static_cast<double>(parameters_of_block(block_sizes(model), tensor).total());
  const auto h = static_cast<double>(model.hidden), f = static_cast<double>(model.inner());
  const double kv =
      h / static_cast<double>(model.heads) * static_cast<double>(model.heads_of_keys());
  return (2 * h * h + 2 * h * kv + 2 * h * f + h + 2 * kv + f) / tensor + 6 * h;
}

double table_parameters(const GptModel& model, int tensor) {
  const std::int64_t rows = (model.vocabulary + tensor - 1) / tensor;
  return static_cast<double>(rows * model.hidden);
}

double split_bytes_of_token(const GptModel& model, BlockRecompute recompute) {
  const auto h = static_cast<double>(model.hidden), f = static_cast<double>(model.inner());
  const double kv =
      h / static_cast<double>(model.heads) * static_cast<double>(model.heads_of_keys());
  return 4 * h + 4 * (recompute == BlockRecompute::None ? h : kv) + 4 * f;
}

double activation_bytes(const GptModel& model, const LayerSplit& split) {
  if (model.flash)  // the formula is one of whole rows: a row's bytes times their number
    return split.micro_batch *
           static_cast<double>(total_of(kept_by_block(block_sizes(model), settings_of(split))));
  const PublishedSizes sizes{.tokens = static_cast<double>(model.sequence),
                             .batch = split.micro_batch,
                             .width = static_cast<double>(model.hidden),
                             .heads = static_cast<double>(model.heads),
                             .tensor = static_cast<double>(split.tensor)};
  const double published = published_activation_bytes(form_of(split), sizes);
  if (split.recompute == BlockRecompute::All) return published;  // its input alone
  const double more = split_bytes_of_token(model, split.recompute) - 24 * sizes.width;
  return published + sizes.tokens * sizes.batch * more / sizes.tensor;
}

}  // namespace trestle::plan
