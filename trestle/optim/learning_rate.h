#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// The learning rate as a function of the step. The numbers are those of the schedulers in Python's
// torch.optim.lr_scheduler, to the last digit: StepLR, MultiStepLR, CosineAnnealingLR (Loshchilov,
// Hutter 2016, without restarts), OneCycleLR (Smith, Topin 2017), and LinearLR in front of any of
// them, joined as SequentialLR does.
//
//   LearningRate rate(0.1, {.schedule = "cosine", .length = 900, .warm_up = 100});
//   for (int step = 0; step < 1000; ++step) {
//     set_learning_rate(optimizer, rate.at(step));
//     train(step);
//   }
//
// There is nothing to save for a run that goes on later: the rate follows from the step's number.
// Whether a "step" is one of the optimizer or an epoch is the caller's choice. What goes by a metric
// is in reduce_on_plateau.h.
namespace trestle::optim {

struct LearningRateOptions {
  std::string schedule = "constant";          // one of learning_rate_schedules()
  double factor = 0.1;                        // step, multi_step: what each decay multiplies by
  std::int64_t every = 1;                     // step: steps between two decays
  std::vector<std::int64_t> milestones = {};  // multi_step: the steps that decay, ascending
  std::int64_t length = 0;                    // cosine, one_cycle: how many steps it takes
  double lowest = 0;                          // cosine: where it ends; afterwards it rises again
  double rise = 0.3;                          // one_cycle: share of its steps that go up
  double first_divisor = 25;                  // one_cycle: it begins at rate / first_divisor
  double last_divisor = 1e4;  // ... and ends at that / last_divisor, and stays there
  // one_cycle: the momentum falls while the rate rises, and rises again while it falls.
  bool cycle_momentum = true;
  double lowest_momentum = 0.85, highest_momentum = 0.95;
  std::int64_t warm_up = 0;    // steps before the schedule's own first one
  double warm_up_from = 0.01;  // the share of the rate that the first of them has
};

class LearningRate {
 public:
  // `base` is the rate after the warm-up; of one_cycle the highest. Throws UsageError for an unknown
  // schedule, with the nearest name, and for numbers out of range.
  LearningRate(double base, LearningRateOptions options = {});

  // The rate of a step, counted from 0. Python's formulas go from one step to the next: a look ahead
  // takes as many of them as there are steps in between, about 20 ns each.
  double at(std::int64_t step);

  // The momentum of a step, where the schedule has one: one_cycle's. Throughout a warm-up it is the
  // highest. For adam and adamw it is beta1.
  std::optional<double> momentum_at(std::int64_t step) const;

  double base() const { return base_; }
  void set_base(double base);

 private:
  double next(std::int64_t step, double before) const;

  double base_;
  LearningRateOptions options_;
  std::size_t schedule_;    // its place in the table
  std::int64_t step_ = -1;  // whose rate is known
  double rate_ = 0;
};

// The names that it knows.
std::vector<std::string> learning_rate_schedules();

}  // namespace trestle::optim
