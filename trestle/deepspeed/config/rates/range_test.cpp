#include <cmath>

#include "trestle/deepspeed/config/rates/rates.h"

namespace trestle::deepspeed::rates {

double deepspeed_range_test(const DeepspeedSchedule& options, double, std::int64_t step) {
  double intervals =
      static_cast<double>(step) / static_cast<double>(options.lr_range_test_step_size);
  if (options.lr_range_test_staircase) intervals = std::floor(intervals);
  return options.lr_range_test_min_lr * (1 + options.lr_range_test_step_rate * intervals);
}

void check_deepspeed_range_test(const DeepspeedSchedule& options, const DeepspeedCheck& check) {
  check(options.lr_range_test_min_lr >= 0, "lr_range_test_min_lr", options.lr_range_test_min_lr,
        "at least 0");
  check(options.lr_range_test_step_rate >= 0, "lr_range_test_step_rate",
        options.lr_range_test_step_rate, "at least 0");
  check(options.lr_range_test_step_size >= 1, "lr_range_test_step_size",
        static_cast<double>(options.lr_range_test_step_size), "at least 1");
}

}  // namespace trestle::deepspeed::rates
