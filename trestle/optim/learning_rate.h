#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// The learning rate as a function of the step. The numbers equal those of Python's
// torch.optim.lr_scheduler to the last digit: StepLR, MultiStepLR, CosineAnnealingLR (Loshchilov,
// Hutter 2016, without restarts), OneCycleLR (Smith, Topin 2017), and LinearLR before any of them,
// joined as by SequentialLR. cosine_decay and linear_decay keep their lowest rate after their end,
// as Megatron-LM's schedules do.
//
//   LearningRate rate(0.1, {.schedule = "cosine", .length = 900, .warm_up = 100});
//   for (int step = 0; step < 1000; ++step) {
//     set_learning_rate(optimizer, rate.at(step));
//     train(step);
//   }
//
// There is nothing to save for a resumed run: the rate follows from the step's number. The caller
// chooses whether a "step" is an optimizer step or an epoch. reduce_on_plateau.h has a schedule
// that depends on a metric.
namespace trestle::optim {

struct LearningRateOptions {
  std::string schedule = "constant";          // one of learning_rate_schedules()
  double factor = 0.1;                        // step, multi_step: the factor of each decay
  std::int64_t every = 1;                     // step: steps between two decays
  std::vector<std::int64_t> milestones = {};  // multi_step: the steps that decay, ascending
  // cosine, cosine_decay, linear_decay, one_cycle: its number of steps.
  std::int64_t length = 0;
  // cosine: the rate at its end; afterwards it rises again. cosine_decay, linear_decay: the rate at
  // the end, which stays.
  double lowest = 0;
  double rise = 0.3;          // one_cycle: the share of its steps that rise
  double first_divisor = 25;  // one_cycle: the first rate is base / first_divisor
  double last_divisor = 1e4;  // one_cycle: the last is the first / last_divisor
  // one_cycle: the momentum falls while the rate rises, and rises while it falls.
  bool cycle_momentum = true;
  double lowest_momentum = 0.85, highest_momentum = 0.95;
  std::int64_t warm_up = 0;    // steps before the schedule's first step
  double warm_up_from = 0.01;  // the first of them, as a share of the base rate
};

class LearningRate {
 public:
  // `base` is the rate after the warm-up; for one_cycle it is the highest. Throws UsageError for an
  // unknown schedule, with the nearest name, and for numbers out of range.
  LearningRate(double base, LearningRateOptions options = {});

  // The rate of a step, counted from 0. Python's formulas compute each rate from the previous one,
  // so a call takes about 20 ns for each step since the last call.
  double at(std::int64_t step);

  // The momentum of a step, for one_cycle only. During a warm-up it is the highest. For adam and
  // adamw it is beta1.
  std::optional<double> momentum_at(std::int64_t step) const;

  double base() const { return base_; }
  void set_base(double base);

 private:
  double next(std::int64_t step, double before) const;

  double base_;
  LearningRateOptions options_;
  std::size_t schedule_;    // its index in the table
  std::int64_t step_ = -1;  // the step of `rate_`
  double rate_ = 0;
};

// The known schedules.
std::vector<std::string> learning_rate_schedules();

}  // namespace trestle::optim
