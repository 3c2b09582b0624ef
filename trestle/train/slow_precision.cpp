#include "trestle/train/slow_precision.h"

#include "trestle/base/text.h"
#include "trestle/precision/cpu_support.h"

namespace trestle::train {
namespace {

std::string way_out(const recipe::Recipe& recipe, const std::string& better) {
  if (recipe.train.deepspeed_config.empty())
    return text("precision = \"", better, "\" in [train], or --precision ", better, ",");
  return better == "bf16" ? "\"bf16\": {\"enabled\": true} instead of \"fp16\" in DeepSpeed's file"
                          : "\"enabled\": false in DeepSpeed's file";
}

}  // namespace

std::optional<precision::SlowPrecision> report_slow_precision(const recipe::Recipe& recipe,
                                                              const nn::Layers& model,
                                                              const TrainHooks& hooks,
                                                              Progress& progress) {
  const std::string& name = recipe.train.precision;
  const Precision precision = precision::parse_precision(name);
  if (precision == Precision::Float32) return {};
  const auto speed =
      hooks.layer_speed ? hooks.layer_speed(model) : precision::measure_layer_speed(model);
  const auto slow = speed ? precision::find_slow_precision(precision, *speed) : std::nullopt;
  const std::string cause = precision::cpu_supports(precision)
                                ? ""
                                : text("this CPU has no instructions for ", name, ": ");
  if (!slow) {
    if (!cause.empty()) progress.note(cause + "it computes in fp32 and converts");
    return {};
  }
  const std::string better = slow->better == Precision::BFloat16 ? "bf16" : "fp32";
  progress.slow_precision({.precision = name,
                           .weight = speed->weight,
                           .seconds = speed->of(precision),
                           .fp32_seconds = speed->fp32,
                           .better = better,
                           .words = text(cause, precision::describe(*slow),
                                         ". The first step takes that much longer "
                                         "too, and the run continues in ",
                                         name, "; ", way_out(recipe, better), " is faster.")});
  return slow;
}

}  // namespace trestle::train
