#include <algorithm>
#include <cmath>

#include "trestle/base/text.h"
#include "trestle/megatron/mapping.h"

namespace trestle::megatron {

namespace {

struct Lengths {
  std::int64_t warm_up = 0, decay = 1;  // in steps; the decay counts the warm-up
};

// A length in steps, from a flag in steps or one in examples.
std::optional<std::int64_t> steps_of(Reading& reading, const std::string& flag,
                                     std::int64_t batch) {
  constexpr Reading::Integers any{0, 9'000'000'000'000'000};
  const auto steps = reading.integer(flag + "-iters", {0, Reading::many});
  const auto examples = reading.integer(flag + "-samples", any);
  if (steps.value_or(0) > 0 && examples.value_or(0) > 0)
    reading.problem(text(flag, "-iters and ", flag, "-samples are both given: give one of them"));
  return steps || !examples ? steps : *examples / batch;
}

Lengths read_lengths(Reading& reading, const Sizes& sizes) {
  Lengths lengths;
  lengths.decay = steps_of(reading, "--lr-decay", sizes.batch).value_or(sizes.steps);
  const auto steps = steps_of(reading, "--lr-warmup", sizes.batch);
  const auto fraction = reading.number("--lr-warmup-fraction", {0, 1});
  if (fraction && steps.value_or(0) > 0)
    reading.problem(
        "--lr-warmup-fraction and --lr-warmup-iters or -samples are both given: give one "
        "of them");
  lengths.warm_up = steps.value_or(0);
  if (fraction) {
    const double exact = *fraction * static_cast<double>(lengths.decay);
    lengths.warm_up = std::llround(exact);
    if (std::abs(exact - static_cast<double>(lengths.warm_up)) > 1e-6)
      reading.note(text("--lr-warmup-fraction ", *fraction, ": ", exact, " steps, rounded to ",
                        lengths.warm_up));
  }
  if (lengths.warm_up >= lengths.decay)
    reading.problem(text("the warm-up of ", lengths.warm_up, " steps leaves none of the ",
                         lengths.decay, " steps of --lr-decay-iters"));
  return lengths;
}

void map_rate(Reading& reading, const Sizes& sizes, RecipeText& out) {
  constexpr double nearly_zero = 1e-9;  // a recipe's warm-up begins above 0
  const std::string style =
      reading.word_or("--lr-decay-style", "linear", {"linear", "cosine", "constant"});
  const double rate = reading.number_or("--lr", 1, {0, 1e6});
  const double lowest = reading.number_or("--min-lr", 0, {0, 1e6});
  const Lengths lengths = read_lengths(reading, sizes);
  if (lowest > rate) reading.problem(text("--min-lr ", lowest, " is above --lr ", rate));
  out.set("learning_rate_schedule", style == "constant" ? style : style + "_decay",
          reading.source("--lr-decay-style"));
  if (style == "constant") {
    for (const char* flag : {"--min-lr", "--lr-decay-iters", "--lr-decay-samples"})
      if (reading.has(flag)) reading.note(text(flag, ": a constant rate does not decay"));
  } else {
    out.set("schedule_length", std::max<std::int64_t>(lengths.decay - lengths.warm_up, 1),
            text(reading.source(reading.has("--lr-decay-samples") ? "--lr-decay-samples"
                                                                  : "--lr-decay-iters"),
                 " without the warm-up"));
    out.set("min_learning_rate", lowest, reading.source("--min-lr"));
  }
  if (lengths.warm_up == 0) return;
  const double first = reading.number_or("--lr-warmup-init", 0, {0, 1e6});
  if (first > rate) reading.problem(text("--lr-warmup-init ", first, " is above --lr ", rate));
  out.set("warm_up", lengths.warm_up, "--lr-warmup-*");
  const double share = rate > 0 ? first / rate : 0;
  out.set("warm_up_from", std::clamp(share, nearly_zero, 1.0), reading.source("--lr-warmup-init"));
}

// The decay of Megatron-LM may change during a run, and a recipe's is constant.
double weight_decay(Reading& reading) {
  const double decay = reading.number_or("--weight-decay", 0.01, {0, 1e6});
  for (const char* flag : {"--start-weight-decay", "--end-weight-decay"})
    if (const auto other = reading.number(flag, {0, 1e6}); other && *other != decay)
      reading.problem(text(flag, " ", *other, ": the weight decay is constant, ",
                           reading.source("--weight-decay"), " ", decay));
  return decay;
}

}  // namespace

void map_optimizer(Reading& reading, const Sizes& sizes, RecipeText& out) {
  out.begin("optimizer");
  const std::string name = reading.word_or("--optimizer", "adam", {"adam", "sgd"});
  if (!reading.has("--lr")) reading.problem("--lr is missing");
  const bool is_adam = name == "adam";
  out.set("name", std::string(is_adam ? "adamw" : "sgd"),
          reading.source("--optimizer") + (is_adam ? " adam, which decays weights as AdamW" : ""));
  out.set("learning_rate", reading.number_or("--lr", 1, {0, 1e6}), "--lr");
  const double decay = weight_decay(reading);
  out.set("weight_decay", decay, reading.source("--weight-decay"));
  if (decay > 0)
    out.set("no_weight_decay", std::vector<std::string>{"one_dimensional"},
            "Megatron-LM decays neither biases nor norms");
  if (is_adam) {
    out.set("beta1", reading.number_or("--adam-beta1", 0.9, {0, 1}),
            reading.source("--adam-beta1"));
    out.set("beta2", reading.number_or("--adam-beta2", 0.999, {0, 1}),
            reading.source("--adam-beta2"));
    out.set("epsilon", reading.number_or("--adam-eps", 1e-8, {0, 1}), reading.source("--adam-eps"));
  } else {
    out.set("momentum", reading.number_or("--sgd-momentum", 0.9, {0, 1}),
            reading.source("--sgd-momentum"));
  }
  out.set("clip_grad_norm", reading.number_or("--clip-grad", 1, {0, 1e9}),
          reading.source("--clip-grad"));
  map_rate(reading, sizes, out);
}

}  // namespace trestle::megatron
