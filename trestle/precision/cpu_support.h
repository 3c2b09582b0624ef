#pragma once

#include "trestle/precision/autocast.h"

namespace trestle::precision {

// Whether this CPU has instructions for the precision. Without them it is emulated in fp32:
// correct, but slower than fp32.
bool cpu_supports(Precision precision);

}  // namespace trestle::precision
