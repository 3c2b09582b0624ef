#pragma once

#include "trestle/launch/exit_status.h"

namespace trestle::cli {

inline constexpr int failed = 1;
using launch::usage_error;  // an invalid request: a flag, a recipe, a file

}  // namespace trestle::cli
