#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// DeepSpeed's learning-rate schedules (deepspeed/runtime/lr_schedules.py) with its names and the
// numbers of version 0.19.6, for configurations written for DeepSpeed. learning_rate.h has those of
// Python's torch.
//
//   DeepspeedRate rate(1e-3, {.type = "WarmupDecayLR",
//                             .warmup_max_lr = 1e-3,
//                             .warmup_num_steps = 100,
//                             .total_num_steps = 1000});
//   for (int step = 0; step < 1000; ++step) {
//     set_learning_rate(optimizer, rate.at(step));
//     train(step);
//   }
//
// DeepSpeed advances its schedule after each optimizer step, and its warm-up starts to count at the
// second step. Steps 0 and 1 both have the lowest rate.
namespace trestle::deepspeed {

// One schedule with DeepSpeed's names. Only the members of its type are used.
struct DeepspeedSchedule {
  std::string type = "WarmupLR";  // one of deepspeed_schedules()
  // WarmupLR: rises from the lowest to the highest rate and stays there. WarmupDecayLR: then falls
  // linearly until step total_num_steps + 1.
  double warmup_min_lr = 0, warmup_max_lr = 1e-3;
  std::int64_t warmup_num_steps = 1000;  // values below 2 count as 2
  std::string warmup_type = "log";       // how it rises: "log" or "linear"
  std::int64_t total_num_steps = 0;
  // WarmupCosineLR: the same with half a cosine, as multiples of the optimizer's own rate. The rate
  // of step 0 is 0. After the end it stays at its last value.
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  // OneCycle (Smith 2018): rises and falls linearly, in stairs if there are any, then decays to
  // min_lr / (1 + rate * steps / decay_step_size). The momentum moves in the opposite direction.
  double cycle_min_lr = 0, cycle_max_lr = 0;
  std::int64_t cycle_first_step_size = 2000, cycle_second_step_size = 2000;
  std::int64_t cycle_first_stair_count = 0, cycle_second_stair_count = 0;
  std::int64_t decay_step_size = 0;  // 0: no decay
  double decay_lr_rate = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9, decay_mom_rate = 0;
  // LRRangeTest (Smith 2018): lr * (1 + rate * steps / size); in stairs the quotient is rounded
  // down.
  double lr_range_test_min_lr = 1e-3, lr_range_test_step_rate = 1;
  std::int64_t lr_range_test_step_size = 2000;
  bool lr_range_test_staircase = false;
};

class DeepspeedRate {
 public:
  // `base` is the optimizer's own rate, which only WarmupCosineLR uses. Throws UsageError for an
  // unknown type, with the nearest name, and for numbers out of range.
  DeepspeedRate(double base, DeepspeedSchedule schedule);

  // The rate of an optimizer step, counted from 0.
  double at(std::int64_t step) const;

  // The momentum of a step, for OneCycle only. For adam and adamw it is beta1, and DeepSpeed sets
  // beta2 to 0.99 as well. At step 0 it is the lowest; from step 1 on it falls from the highest.
  std::optional<double> momentum_at(std::int64_t step) const;

 private:
  double base_;
  DeepspeedSchedule schedule_;
};

// The known types.
std::vector<std::string> deepspeed_schedules();

}  // namespace trestle::deepspeed
