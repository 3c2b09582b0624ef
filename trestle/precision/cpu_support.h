#pragma once

#include "trestle/precision/autocast.h"

namespace trestle::precision {

// Has this CPU instructions for it? Without them it is computed by way of fp32: right, but slower
// than fp32 itself.
bool cpu_supports(Precision precision);

}  // namespace trestle::precision
