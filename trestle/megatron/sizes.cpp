#include <algorithm>

#include "trestle/base/text.h"
#include "trestle/megatron/mapping.h"

namespace trestle::megatron {

namespace {

constexpr Reading::Integers rank_count{1, 100'000};

// The world size of torchrun's flags; 0 without them.
std::int64_t ranks_of_launcher(Reading& reading) {
  const auto with_lines = reading.integer("--nproc_per_node", rank_count);
  const auto with_hyphens = reading.integer("--nproc-per-node", rank_count);
  const auto nodes = reading.integer("--nnodes", rank_count);
  const auto each = with_lines ? with_lines : with_hyphens;
  return each || nodes ? each.value_or(1) * nodes.value_or(1) : 0;
}

void read_ranks(Reading& reading, int given, Sizes& sizes) {
  sizes.tensor = reading.integer_or("--tensor-model-parallel-size", 1, rank_count);
  sizes.pipeline = reading.integer_or("--pipeline-model-parallel-size", 1, rank_count);
  if (reading.integer_or("--context-parallel-size", 1, rank_count) > 1)
    reading.problem(
        "--context-parallel-size: a row of tokens is on one rank, or on the tensor ranks with "
        "--sequence-parallel");
  if (reading.integer_or("--expert-model-parallel-size", 1, rank_count) > 1)
    reading.problem("--expert-model-parallel-size: there are no mixtures of experts");
  const std::int64_t launched = ranks_of_launcher(reading);
  if (given > 0 && launched > 0 && given != launched)
    reading.problem(
        text("--ranks ", given, " contradicts --nproc_per_node x --nnodes, which is ", launched));
  const std::int64_t model = sizes.tensor * sizes.pipeline;
  const std::int64_t world = given > 0 ? given : launched > 0 ? launched : model;
  sizes.data_parallel = std::max<std::int64_t>(world / model, 1);
  if (world % model != 0)
    reading.problem(
        text(world, " ranks are no multiple of --tensor-model-parallel-size ", sizes.tensor,
             " x --pipeline-model-parallel-size ", sizes.pipeline, " = ", model,
             world > model ? text(": the nearest numbers of ranks are ", world / model * model,
                                  " and ", (world / model + 1) * model)
                           : text(": the least number of ranks is ", model)));
}

void read_batch(Reading& reading, Sizes& sizes) {
  sizes.micro_batch = reading.required("--micro-batch-size", {});
  const std::int64_t shares = sizes.micro_batch * sizes.data_parallel;
  sizes.batch = reading.integer_or("--global-batch-size", shares, {});
  sizes.micro_batches = std::max<std::int64_t>(sizes.batch / shares, 1);
  if (sizes.batch % shares == 0) return;
  const std::int64_t below = sizes.batch / shares * shares;
  reading.problem(
      text("--global-batch-size ", sizes.batch, " is no multiple of --micro-batch-size ",
           sizes.micro_batch, " x ", sizes.data_parallel,
           sizes.data_parallel == 1 ? " data-parallel rank" : " data-parallel ranks", " = ", shares,
           below > 0 ? text(": the nearest sizes are ", below, " and ", below + shares)
                     : text(": the least size is ", shares)));
}

void read_length(Reading& reading, Sizes& sizes) {
  constexpr std::int64_t usual_interval = 1000;
  constexpr Reading::Integers samples{1, 9'000'000'000'000'000};
  const auto steps = reading.integer("--train-iters", {});
  const auto examples = reading.integer("--train-samples", samples);
  if (steps && examples)
    reading.problem("--train-iters and --train-samples are both given: give one of them");
  if (!reading.has("--train-iters") && !reading.has("--train-samples"))
    reading.problem("--train-iters is missing");
  sizes.steps = steps.value_or(std::max<std::int64_t>(examples.value_or(1) / sizes.batch, 1));
  sizes.steps_per_epoch = reading.integer_or("--eval-interval", usual_interval, {});
}

// Each tensor rank has whole heads, and the same number of them.
void check_tensor(Reading& reading, const Sizes& sizes) {
  if (sizes.tensor == 1) return;
  const auto check = [&](const char* flag, std::int64_t size) {
    if (size % sizes.tensor != 0)
      reading.problem(text("--tensor-model-parallel-size ", sizes.tensor, " does not divide ", flag,
                           " ", size, ", which ", divisors_of(size), " divide"));
  };
  check("--num-attention-heads", sizes.heads);
  check("--ffn-hidden-size", sizes.mlp);
  if (reading.has("--sequence-parallel")) check("--seq-length", sizes.sequence);
}

// Megatron-LM's rule for the inner width; with --swiglu it rounds down.
std::int64_t standard_mlp(Reading& reading, std::int64_t width) {
  constexpr std::int64_t multiple = 64;
  if (!reading.has("--swiglu")) return 4 * width;
  return std::max<std::int64_t>(8 * width / 3 / multiple * multiple, 1);
}

}  // namespace

Sizes read_sizes(Reading& reading, int ranks) {
  Sizes sizes;
  const std::int64_t width = reading.integer_or("--hidden-size", 1, {});
  sizes.layers = reading.required("--num-layers", {});
  sizes.heads = reading.required("--num-attention-heads", {});
  sizes.sequence = reading.required("--seq-length", {});
  sizes.mlp = reading.integer_or("--ffn-hidden-size", standard_mlp(reading, width), {});
  sizes.has_fp16 = reading.has("--fp16");
  read_ranks(reading, ranks, sizes);
  check_tensor(reading, sizes);
  read_batch(reading, sizes);
  read_length(reading, sizes);
  return sizes;
}

}  // namespace trestle::megatron
