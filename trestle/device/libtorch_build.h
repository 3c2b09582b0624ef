#pragma once

#include <string>

namespace trestle {

// The libtorch that this process runs with, and the libraries it was built with. Versions are text,
// "" for a missing library.
struct LibtorchBuild {
  std::string version;  // "2.13.0"
  std::string cuda;     // "13.0"
  std::string cudnn;    // "9.10.2"
  std::string nccl;     // "2.27.5"
  bool mkl = false, onednn = false;
};

LibtorchBuild libtorch_build();

// "2.13.0", "2.15.0, CUDA 13.0, cuDNN 9.10.2, NCCL 2.27.5"
std::string to_string(const LibtorchBuild& build);

}  // namespace trestle
