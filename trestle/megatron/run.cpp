#include <cmath>
#include <optional>

#include "trestle/base/text.h"
#include "trestle/megatron/mapping.h"

namespace trestle::megatron {

namespace {

// The logarithm of a power of two.
std::optional<int> power_of_two(double value) {
  int power = 0;
  const double mantissa = std::frexp(value, &power);
  return mantissa == 0.5 && power >= 1 ? std::optional(power - 1) : std::nullopt;
}

// The gradient scaler of Megatron-LM in the form of DeepSpeed's JSON, which a recipe can hold. The
// two count overflows in the same way.
std::string scaler(Reading& reading) {
  constexpr double usual = 4294967296;  // 2^32
  constexpr Reading::Integers counts{1, 1'000'000};
  if (const auto fixed = reading.number("--loss-scale", {1, 1e9}))
    return text(R"("fp16": {"enabled": true, "loss_scale": )",
                recipe::to_toml(recipe::FieldValue(*fixed)), "}");
  const double first = reading.number_or("--initial-loss-scale", usual, {1, 1e18});
  const auto power = power_of_two(first);
  if (!power)
    reading.problem(text("--initial-loss-scale ", first, " is no power of 2: the nearest ones are ",
                         std::exp2(std::floor(std::log2(first))), " and ",
                         std::exp2(std::ceil(std::log2(first)))));
  return text(R"("fp16": {"enabled": true, "initial_scale_power": )", power.value_or(0),
              R"(, "loss_scale_window": )", reading.integer_or("--loss-scale-window", 1000, counts),
              R"(, "hysteresis": )", reading.integer_or("--hysteresis", 2, counts),
              R"(, "min_loss_scale": )", reading.integer_or("--min-loss-scale", 1, counts), "}");
}

void map_precision(Reading& reading, const Sizes& sizes, RecipeText& out) {
  const bool bf16 = reading.has("--bf16");
  if (bf16 && sizes.has_fp16) reading.problem("--bf16 and --fp16 are both given: give one of them");
  out.set("precision",
          std::string(bf16             ? "bf16"
                      : sizes.has_fp16 ? "fp16"
                                       : "fp32"),
          bf16             ? "--bf16; weights stay fp32"
          : sizes.has_fp16 ? "--fp16; weights stay fp32"
                           : "neither --bf16 nor --fp16");
  std::string json;
  if (sizes.has_fp16) json += ", " + scaler(reading);
  if (reading.has("--grad-reduce-in-bf16")) {
    if (sizes.data_parallel > 1)
      json += R"(, "communication_data_type": "bf16")";
    else
      reading.note("--grad-reduce-in-bf16: there is one data-parallel rank");
  }
  if (!json.empty())
    out.set("deepspeed_config", R"({"train_micro_batch_size_per_gpu": 1)" + json + "}",
            "the loss scale and the reductions, in DeepSpeed's words");
}

}  // namespace

void map_run(Reading& reading, const Sizes& sizes, RecipeText& out) {
  out.begin("train");
  const bool accumulates = sizes.pipeline == 1;
  const std::int64_t accumulate = accumulates ? sizes.micro_batches : 1;
  out.set("batch", sizes.batch / accumulate,
          accumulates ? text("--micro-batch-size x ", sizes.data_parallel, " data parallel")
                      : reading.source("--global-batch-size"));
  if (accumulate > 1)
    out.set("accumulate", accumulate, text("--global-batch-size ", sizes.batch, " / batch"));
  out.set("max_steps", sizes.steps,
          reading.has("--train-samples") ? "--train-samples / batch" : "--train-iters");
  out.set("epochs", (sizes.steps + sizes.steps_per_epoch - 1) / sizes.steps_per_epoch,
          "max_steps / steps of an epoch");
  map_precision(reading, sizes, out);
  out.set("seed", reading.integer_or("--seed", 1234, {0, Reading::many}), reading.source("--seed"));
  if (reading.has("--deterministic-mode")) out.set("deterministic", true, "--deterministic-mode");
  out.set("log_every", reading.integer_or("--log-interval", 100, {}) * accumulate,
          reading.source("--log-interval") + (accumulate > 1 ? " x accumulate" : ""));
  if (const auto steps = reading.integer("--save-interval", {}))
    out.set("save_every", *steps, "--save-interval");
  const std::string save = reading.word_or("--save", ""), load = reading.word_or("--load", "");
  if (!save.empty())
    reading.note(text("--save ", on_one_line(save),
                      ": a run saves in its own folder; 'runs' in [train] is the folder of runs"));
  if (load.empty()) return;
  if (load == save)
    reading.note(text("--load ", on_one_line(load), ": trestle train --resume runs/NAME"));
  else
    reading.problem(text("--load ", on_one_line(load),
                         " is not the folder of --save: Megatron-LM's checkpoints are not read. "
                         "Convert them to Hugging Face's files, and name these as 'weights' in "
                         "[model] (docs/megatron.md)"));
}

}  // namespace trestle::megatron
