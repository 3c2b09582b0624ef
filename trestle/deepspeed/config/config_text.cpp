#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/deepspeed/config/config.h"

namespace trestle::deepspeed {

namespace {

// With the digits needed to read it back: 0.00012345678, 65536, 1e-08.
std::string number(double value) {
  const std::string digits = nlohmann::json(value).dump();
  return digits.ends_with(".0") ? digits.substr(0, digits.size() - 2) : digits;
}

std::string batch_text(const DeepspeedConfig& config) {
  return text(config.train_batch, " per step = ", config.micro_batch, " per micro-batch x ",
              config.accumulate, " accumulated x ", config.ranks,
              config.ranks == 1 ? " rank" : " ranks",
              config.drop_last ? " · a smaller last batch is dropped" : "");
}

std::string stage_text(const DeepspeedConfig& config) {
  constexpr std::array what = {"nothing is sharded", "the optimizer's state is sharded",
                               "gradients and the optimizer's state are sharded",
                               "parameters, gradients and the optimizer's state are sharded"};
  std::string line = text("stage ", config.stage, ": ", what.at(config.stage));
  if (config.shard_ranks > 0)
    line += text(" over ", config.shard_ranks, " ranks, ", config.ranks / config.shard_ranks,
                 " replicas");
  if (config.offload_optimizer) line += " · the optimizer's state is on the CPU";
  if (config.offload_parameters) line += " · parameters are on the CPU";
  if (!config.ignore_unused) line += " · a parameter without a gradient is an error";
  return line;
}

std::string bucket_text(const DeepspeedConfig& config) {
  return text(
      config.stage == 3 ? "one unit's parameters at a time"
                        : format_count(config.reduce_bucket) + " elements at a time",
      config.communication.empty() ? "" : " · gradients are reduced in " + config.communication);
}

std::string precision_text(const DeepspeedConfig& config) {
  const DeepspeedScaler& scaler = config.scaler;
  if (config.precision != "fp16") return config.precision;
  if (!scaler.dynamic) return text("fp16, loss scale ", number(scaler.initial_scale));
  return text("fp16, loss scale ", number(scaler.initial_scale), ", doubled after ",
              scaler.growth_interval, " good steps, halved after ", scaler.hysteresis,
              scaler.hysteresis == 1 ? " overflow" : " overflows",
              scaler.consecutive_hysteresis ? " in a row" : "", ", never below ",
              number(scaler.lowest_scale));
}

std::string optimizer_text(const optim::OptimizerOptions& o) {
  std::string line = text(o.name, " · learning rate ", number(o.learning_rate), " · weight decay ",
                          number(o.weight_decay));
  const bool adam = o.name == "adam" || o.name == "adamw";
  if (adam) line += text(" · betas ", number(o.beta1), ", ", number(o.beta2));
  if (!adam) line += text(" · momentum ", number(o.momentum));
  if (o.name == "rmsprop") line += text(" · alpha ", number(o.alpha));
  if (o.name != "sgd") line += text(" · epsilon ", number(o.epsilon));
  if (o.nesterov) line += " · nesterov";
  if (o.centered) line += " · centered";
  if (o.amsgrad) line += " · amsgrad";
  return line;
}

std::string schedule_text(const DeepspeedSchedule& s) {
  const std::string warm_up = text(s.warmup_num_steps, " steps (", s.warmup_type, ")");
  if (s.type == "WarmupLR" || s.type == "WarmupDecayLR") {
    std::string line = text(s.type, " · ", number(s.warmup_min_lr), " to ", number(s.warmup_max_lr),
                            " in ", warm_up);
    if (s.type == "WarmupDecayLR")
      line += text(", back to ", number(s.warmup_min_lr), " by step ", s.total_num_steps);
    return line;
  }
  if (s.type == "WarmupCosineLR")
    return text(s.type, " · ", number(s.warmup_min_ratio), " to 1 times the optimizer's rate in ",
                warm_up, ", to ", number(s.cos_min_ratio), " times it at step ", s.total_num_steps);
  if (s.type == "LRRangeTest")
    return text(s.type, " · from ", number(s.lr_range_test_min_lr), ", rises by ",
                number(s.lr_range_test_step_rate), " times that every ", s.lr_range_test_step_size,
                " steps", s.lr_range_test_staircase ? ", in stairs" : "");
  std::string line =
      text(s.type, " · ", number(s.cycle_min_lr), " to ", number(s.cycle_max_lr), " in ",
           s.cycle_first_step_size, " steps, back in ", s.cycle_second_step_size);
  if (s.cycle_first_stair_count > 0 || s.cycle_second_stair_count > 0)
    line += text(" (", s.cycle_first_stair_count, " and ", s.cycle_second_stair_count, " stairs)");
  if (s.decay_step_size > 0)
    line +=
        text(", then down by ", number(s.decay_lr_rate), " every ", s.decay_step_size, " steps");
  if (s.cycle_momentum)
    line += text(
        " · momentum ", number(s.cycle_max_mom), " to ", number(s.cycle_min_mom), " and back",
        s.decay_mom_rate > 0 ? text(", then up by ", number(s.decay_mom_rate)) : std::string());
  return line;
}

std::string clipping_text(const DeepspeedConfig& config, const DeepspeedOwn& own) {
  if (!own.clipping.empty()) return own.clipping;
  if (config.clip_grad_norm <= 0) return "none";
  return text("a gradient norm above ", number(config.clip_grad_norm),
              config.clips_by_default
                  ? ", DeepSpeed's default since 0.19; \"gradient_clipping\": 0 turns it off"
                  : "");
}

void add_lines(std::ostringstream& out, std::string_view title,
               const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out << title << "\n";
  for (const std::string& line : lines) out << "  " << line << "\n";
}

}  // namespace

std::string to_text(const DeepspeedConfig& config, const DeepspeedOwn& own) {
  std::ostringstream out;
  out << config.file << ", as resolved:\n"
      << "batch       " << batch_text(config) << "\n"
      << "zero        " << stage_text(config) << "\n"
      << "buckets     " << bucket_text(config) << "\n"
      << "precision   " << (own.precision.empty() ? precision_text(config) : own.precision) << "\n"
      << "optimizer   " << (config.optimizer ? optimizer_text(*config.optimizer) : own.optimizer)
      << "\n"
      << "schedule    " << (config.schedule ? schedule_text(*config.schedule) : own.schedule)
      << "\n"
      << "clipping    " << clipping_text(config, own) << "\n";
  add_lines(out, "not as the name suggests:", config.notes);
  add_lines(out, "without effect in this run:", config.without_effect);
  return out.str();
}

}  // namespace trestle::deepspeed
