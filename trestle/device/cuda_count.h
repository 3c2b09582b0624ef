#pragma once

namespace trestle {

// Number of GPUs visible to this process; 0 in a CPU build of libtorch.
int cuda_count();

}  // namespace trestle
