#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

double constant(const LearningRateOptions&, const Position& position) { return position.base; }

}  // namespace trestle::optim::rates
