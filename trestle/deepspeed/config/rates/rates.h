#pragma once

#include <functional>

#include "trestle/deepspeed/config/rate.h"

// The schedules of deepspeed_rate.h. Not installed.
namespace trestle::optim::rates {

// Throws unless `holds`; the message has the name, the value and its valid range.
using DeepspeedCheck =
    std::function<void(bool holds, const char* what, double value, const char* range)>;

// Each returns the rate of the step.
double deepspeed_warm_up(const DeepspeedRateOptions& options, double base, std::int64_t step);
double deepspeed_warm_up_decay(const DeepspeedRateOptions& options, double base, std::int64_t step);
double deepspeed_warm_up_cosine(const DeepspeedRateOptions& options, double base,
                                std::int64_t step);
double deepspeed_one_cycle(const DeepspeedRateOptions& options, double base, std::int64_t step);
double deepspeed_one_cycle_momentum(const DeepspeedRateOptions& options, std::int64_t step);
double deepspeed_range_test(const DeepspeedRateOptions& options, double base, std::int64_t step);

void check_deepspeed_warm_up(const DeepspeedRateOptions& options, const DeepspeedCheck& check);
void check_deepspeed_warm_up_decay(const DeepspeedRateOptions& options,
                                   const DeepspeedCheck& check);
void check_deepspeed_warm_up_cosine(const DeepspeedRateOptions& options,
                                    const DeepspeedCheck& check);
void check_deepspeed_one_cycle(const DeepspeedRateOptions& options, const DeepspeedCheck& check);
void check_deepspeed_range_test(const DeepspeedRateOptions& options, const DeepspeedCheck& check);

}  // namespace trestle::optim::rates
