#include <array>

#include "trestle/base/choose.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/config/sections.h"

namespace trestle::deepspeed {

namespace {

constexpr double largest_rate = 1e30, steps = 1e15;
constexpr auto path = "scheduler.params";

void need(const Json& params, const char* name, Reading reading) {
  if (params.is_object() && !is_given(params, name))
    reading.problems.add(
        text("'", name, "' is missing in ", path, " of ", reading.config.schedule->type));
}

Keys warm_up_keys(DeepspeedSchedule& to) {
  return {obeyed("warmup_num_steps", to.warmup_num_steps, {1, steps}),
          obeyed("warmup_type", to.warmup_type, {"log", "linear"})};
}

// DeepSpeed's versions disagree about WarmupLR's highest rate if the file leaves it out.
void check_highest_rate(const std::optional<double>& highest, Reading reading) {
  const auto& optimizer = reading.config.optimizer;
  const double usual = DeepspeedSchedule().warmup_max_lr;
  if (highest || !optimizer || optimizer->learning_rate == usual) return;
  reading.problems.add(text("'warmup_max_lr' is missing in ", path,
                            " of WarmupLR: DeepSpeed before 0.17.2 uses ", usual,
                            ", later versions use the optimizer's lr, ", optimizer->learning_rate,
                            ". Add it to the file."));
}

void read_warm_up(const Json& params, DeepspeedSchedule& to, Reading reading) {
  std::optional<double> highest;
  Keys keys = warm_up_keys(to);
  keys.push_back(obeyed("warmup_min_lr", to.warmup_min_lr, {0, largest_rate}));
  keys.push_back(obeyed("warmup_max_lr", highest, {0, largest_rate}));
  const bool decays = to.type == "WarmupDecayLR";
  if (decays) keys.push_back(obeyed("total_num_steps", to.total_num_steps, {1, steps}));
  read_object(params, path, keys, reading);
  if (decays)
    need(params, "total_num_steps", reading);
  else
    check_highest_rate(highest, reading);
  to.warmup_max_lr = highest.value_or(to.warmup_max_lr);
}

void read_warm_up_cosine(const Json& params, DeepspeedSchedule& to, Reading reading) {
  Keys keys = warm_up_keys(to);
  keys.push_back(obeyed("warmup_min_ratio", to.warmup_min_ratio, {0, 1}));
  keys.push_back(obeyed("cos_min_ratio", to.cos_min_ratio, {0, 1}));
  keys.push_back(obeyed("total_num_steps", to.total_num_steps, {1, steps}));
  read_object(params, path, keys, reading);
  need(params, "total_num_steps", reading);
}

void read_one_cycle(const Json& params, DeepspeedSchedule& to, Reading reading) {
  std::optional<std::int64_t> second_size, second_stairs;
  read_object(params, path,
              {obeyed("cycle_min_lr", to.cycle_min_lr, {0, largest_rate}),
               obeyed("cycle_max_lr", to.cycle_max_lr, {0, largest_rate}),
               obeyed("decay_lr_rate", to.decay_lr_rate, {0, largest_rate}),
               obeyed("cycle_first_step_size", to.cycle_first_step_size, {1, steps}),
               obeyed("cycle_second_step_size", second_size, {1, steps}),
               obeyed("cycle_first_stair_count", to.cycle_first_stair_count, {0, steps}),
               obeyed("cycle_second_stair_count", second_stairs, {0, steps}),
               obeyed("decay_step_size", to.decay_step_size, {0, steps}),
               obeyed("cycle_momentum", to.cycle_momentum),
               obeyed("cycle_min_mom", to.cycle_min_mom, {0, 1}),
               obeyed("cycle_max_mom", to.cycle_max_mom, {0, 1}),
               obeyed("decay_mom_rate", to.decay_mom_rate, {0, largest_rate})},
              reading);
  need(params, "cycle_min_lr", reading);
  need(params, "cycle_max_lr", reading);
  to.cycle_second_step_size = second_size.value_or(to.cycle_first_step_size);
  to.cycle_second_stair_count = second_stairs.value_or(to.cycle_first_stair_count);
}

void read_range_test(const Json& params, DeepspeedSchedule& to, Reading reading) {
  read_object(params, path,
              {obeyed("lr_range_test_min_lr", to.lr_range_test_min_lr, {0, largest_rate}),
               obeyed("lr_range_test_step_size", to.lr_range_test_step_size, {1, steps}),
               obeyed("lr_range_test_step_rate", to.lr_range_test_step_rate, {0, largest_rate}),
               obeyed("lr_range_test_staircase", to.lr_range_test_staircase)},
              reading);
}

struct SchedulerReader {
  const char* name;
  void (*read)(const Json&, DeepspeedSchedule&, Reading);
};
constexpr std::array scheduler_readers = {
    SchedulerReader{"WarmupLR", read_warm_up}, SchedulerReader{"WarmupDecayLR", read_warm_up},
    SchedulerReader{"WarmupCosineLR", read_warm_up_cosine},
    SchedulerReader{"OneCycle", read_one_cycle}, SchedulerReader{"LRRangeTest", read_range_test}};

}  // namespace

void read_scheduler(const Json& json, Reading reading) {
  const auto typed = read_typed(json, "scheduler", {}, reading);
  if (!typed) return;
  const auto& [type, params] = *typed;
  for (const SchedulerReader& reader : scheduler_readers) {
    if (type != reader.name) continue;
    reading.config.schedule = DeepspeedSchedule{.type = type};
    return reader.read(params, *reading.config.schedule, reading);
  }
  std::vector<std::string> names;
  for (const SchedulerReader& reader : scheduler_readers) names.emplace_back(reader.name);
  const std::string meant = type.size() < 30 ? did_you_mean(type, names) : "";
  reading.problems.add(text("unknown scheduler ", shown(Json(type)), meant.empty() ? "." : meant,
                            " Known are ", join(names, ", "), "."));
}

}  // namespace trestle::deepspeed
