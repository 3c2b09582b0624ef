#include "trestle/plan/transformer_traffic.h"

#include "trestle/plan/block_widths.h"

namespace trestle::plan {

namespace {

// The gradients of a norm's parameters, one message. With autocast they are fp32, as the sums.
MessageCount norm_gradients(const BlockSizes& sizes, const BlockWidths& of) {
  const std::int64_t vectors = sizes.style == BlockSizes::Style::Gpt2 ? 2 : 1;
  return {.calls = 1, .bytes = vectors * sizes.width * of.sum};
}

// Shards of the tokens that differ by one travel with a padded token.
std::int64_t sent_tokens(const BlockSettings& settings, const BlockWidths& of) {
  return settings.sequence ? of.own_tokens * settings.tensor : of.tokens;
}

MessageCount messages(std::int64_t calls, Bytes bytes) {
  return {.calls = calls, .bytes = calls * bytes};
}

}  // namespace

StepTraffic traffic_of_block(const BlockSizes& sizes, const BlockSettings& settings) {
  const BlockWidths of = widths_of(sizes, settings);
  StepTraffic step;
  if (settings.tensor == 1) return step;
  const Bytes activations = sent_tokens(settings, of) * sizes.width * of.product;
  if (settings.sequence) {
    step.forward.all_gather = step.forward.reduce_scatter = messages(2, activations);
    step.backward.all_gather = messages(4, activations);
    step.backward.reduce_scatter = messages(2, activations);
    for (int norm = 0; norm < 2; ++norm) step.backward.all_reduce += norm_gradients(sizes, of);
  } else {
    step.forward.all_reduce = step.backward.all_reduce = messages(2, activations);
  }
  if (sizes.kv_heads % settings.tensor != 0) {
    const MessageCount keys_and_values =
        messages(1, of.tokens * 2 * of.kv_columns * settings.tensor * of.product);
    step.forward.all_gather += keys_and_values;
    step.backward.reduce_scatter += keys_and_values;
  }
  if (settings.recompute == BlockSettings::Recompute::Block) step.backward += step.forward;
  if (shares_input(settings))
    step.backward.all_gather +=
        messages(1, share_of(of.own_tokens * sizes.width, settings) * settings.tensor * of.sum);
  return step;
}

StepTraffic traffic_of_vocabulary(const BlockSizes& sizes, const BlockSettings& settings,
                                  const VocabularySettings& vocabulary) {
  const BlockWidths of = widths_of(sizes, settings);
  StepTraffic step;
  const std::int64_t t = settings.tensor;
  if (t == 1) return step;
  const std::int64_t numbers = sent_tokens(settings, of) * sizes.width;
  const MessageCount embedded = messages(1, numbers * of.sum),
                     products = messages(1, numbers * of.product);
  if (!settings.sequence) {
    step.forward.all_reduce += messages(1, of.tokens * sizes.width * of.sum);
    step.backward.all_reduce += products;
  } else {
    if (sizes.style == BlockSizes::Style::Gpt2) {
      step.forward.all_reduce += messages(1, of.tokens * sizes.width * of.sum);
    } else {
      step.forward.reduce_scatter += embedded;
    }
    step.backward.all_gather += embedded;
    step.forward.all_gather += products;
    step.backward.all_gather += products;
    step.backward.reduce_scatter += products;
    step.backward.all_reduce += norm_gradients(sizes, of);
  }
  if (vocabulary.joins_scores) {
    step.forward.all_gather +=
        messages(1, of.tokens * ((vocabulary.rows + t - 1) / t * t) * of.product);
  } else {
    // The largest scores; the target's score and the sum of exponentials, and the sum of scores.
    const Bytes number = of.tokens * 4;
    step.forward.all_reduce += messages(1, number);
    step.forward.all_reduce += messages(1, (vocabulary.label_smoothing ? 3 : 2) * number);
  }
  return step;
}

}  // namespace trestle::plan
