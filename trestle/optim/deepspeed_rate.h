#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// DeepSpeed's learning-rate schedules (deepspeed/runtime/lr_schedules.py), by its names and with the
// numbers of 0.19.6, for configurations that come from there; learning_rate.h has Python torch's.
//
//   DeepspeedRate rate(1e-3, {.type = "WarmupDecayLR", .warmup_max_lr = 1e-3, .warmup_num_steps = 100,
//                             .total_num_steps = 1000});
//   for (int step = 0; step < 1000; ++step) {
//     set_learning_rate(optimizer, rate.at(step));
//     train(step);
//   }
//
// DeepSpeed moves its schedule after each step of the optimizer, and its warm-up begins to count with
// the second: steps 0 and 1 have the lowest rate.
namespace trestle::optim {

struct DeepspeedRateOptions {
  std::string type = "WarmupLR";  // one of deepspeed_schedules()
  // WarmupLR: from the lowest to the highest rate, and there it stays. WarmupDecayLR: and then back
  // along a line, until step total_num_steps + 1.
  double warmup_min_lr = 0, warmup_max_lr = 1e-3;
  std::int64_t warmup_num_steps = 1000;  // at least 2 are taken
  std::string warmup_type = "log";       // how it rises: by the step's logarithm, or linear
  std::int64_t total_num_steps = 0;
  // WarmupCosineLR: the same with half a cosine, in shares of the optimizer's own rate; of step 0 it
  // is 0, and from the end on it stays.
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  // OneCycle (Smith 2018): up and back along lines, in stairs where there are any, then down to
  // min_lr / (1 + rate * steps / decay_step_size). The momentum moves the other way.
  double cycle_min_lr = 0, cycle_max_lr = 0;
  std::int64_t cycle_first_step_size = 2000, cycle_second_step_size = 2000;
  std::int64_t cycle_first_stair_count = 0, cycle_second_stair_count = 0;
  std::int64_t decay_step_size = 0;  // 0: no decay
  double decay_lr_rate = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9, decay_mom_rate = 0;
  // LRRangeTest (Smith 2018): lr * (1 + rate * steps / size), the quotient whole in stairs.
  double lr_range_test_min_lr = 1e-3, lr_range_test_step_rate = 1;
  std::int64_t lr_range_test_step_size = 2000;
  bool lr_range_test_staircase = false;
};

class DeepspeedRate {
 public:
  // `base` is the optimizer's own rate, which WarmupCosineLR goes by. Throws UsageError for an unknown
  // type, with the nearest name, and for numbers out of range.
  DeepspeedRate(double base, DeepspeedRateOptions options);

  // The rate of a step of the optimizer, counted from 0.
  double at(std::int64_t step) const;

  // The momentum of a step, where the schedule moves it: OneCycle's. For adam and adamw it is beta1,
  // and DeepSpeed sets beta2 to 0.99 with it; of step 0 it is the lowest, and falls from the highest
  // afterwards.
  std::optional<double> momentum_at(std::int64_t step) const;

 private:
  double base_;
  DeepspeedRateOptions options_;
};

// The types that it knows.
std::vector<std::string> deepspeed_schedules();

}  // namespace trestle::optim
