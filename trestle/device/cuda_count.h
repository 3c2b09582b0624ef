#pragma once

namespace trestle {

// GPUs that this process sees; 0 in a CPU build of libtorch.
int cuda_count();

}  // namespace trestle
