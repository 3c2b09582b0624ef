#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

namespace {

double constant_rate(const LearningRateOptions&, const Position& position) { return position.base; }

}  // namespace

RateSchedule constant_schedule() { return {.name = "constant", .rate = constant_rate}; }

}  // namespace trestle::optim::rates
