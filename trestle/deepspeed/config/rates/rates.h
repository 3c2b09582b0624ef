#pragma once

#include <functional>

#include "trestle/deepspeed/config/rate.h"

// The schedules of rate.h. Not installed.
namespace trestle::deepspeed::rates {

// Throws unless `holds`; the message has the name, the value and its valid range.
using DeepspeedCheck =
    std::function<void(bool holds, const char* what, double value, const char* range)>;

// Each returns the rate of the step.
double deepspeed_warm_up(const DeepspeedSchedule& options, double base, std::int64_t step);
double deepspeed_warm_up_decay(const DeepspeedSchedule& options, double base, std::int64_t step);
double deepspeed_warm_up_cosine(const DeepspeedSchedule& options, double base, std::int64_t step);
double deepspeed_one_cycle(const DeepspeedSchedule& options, double base, std::int64_t step);
double deepspeed_one_cycle_momentum(const DeepspeedSchedule& options, std::int64_t step);
double deepspeed_range_test(const DeepspeedSchedule& options, double base, std::int64_t step);

void check_deepspeed_warm_up(const DeepspeedSchedule& options, const DeepspeedCheck& check);
void check_deepspeed_warm_up_decay(const DeepspeedSchedule& options, const DeepspeedCheck& check);
void check_deepspeed_warm_up_cosine(const DeepspeedSchedule& options, const DeepspeedCheck& check);
void check_deepspeed_one_cycle(const DeepspeedSchedule& options, const DeepspeedCheck& check);
void check_deepspeed_range_test(const DeepspeedSchedule& options, const DeepspeedCheck& check);

}  // namespace trestle::deepspeed::rates
