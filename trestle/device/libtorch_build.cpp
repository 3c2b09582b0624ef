#include "trestle/device/libtorch_build.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <torch/version.h>

#include "trestle/base/text.h"

namespace trestle {
namespace {

// Version 9.10.2 is 91002; before version 9, 8.9.7 was 8907.
std::string cudnn_version(long number) {
  const long major = number >= 90000 ? number / 10000 : number / 1000;
  const long rest = number >= 90000 ? number % 10000 : number % 1000;
  return text(major, ".", rest / 100, ".", rest % 100);
}

// libtorch links NCCL if it was built with it. The symbol is looked up at run time, because NCCL's
// header is not available.
std::string nccl_version() {
  using GetVersion = int(int*);
  auto* const get_version = reinterpret_cast<GetVersion*>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int number = 0;
  if (!get_version || get_version(&number) != 0) return "";
  return text(number / 10000, ".", number % 10000 / 100, ".", number % 100);
}

}  // namespace

LibtorchBuild libtorch_build() {
  LibtorchBuild build;
  build.version = text(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".", TORCH_VERSION_PATCH);
  build.mkl = at::hasMKL();
  build.onednn = at::hasMKLDNN();
  const auto& hooks = at::detail::getCUDAHooks();
  if (hooks.hasCUDART()) {
    const long number = hooks.versionCUDART();
    build.cuda = text(number / 1000, ".", number % 1000 / 10);
    build.nccl = nccl_version();
  }
  if (hooks.hasCuDNN()) build.cudnn = cudnn_version(hooks.versionCuDNN());
  return build;
}

std::string to_string(const LibtorchBuild& build) {
  std::string words = build.version;
  if (!build.cuda.empty()) words += ", CUDA " + build.cuda;
  if (!build.cudnn.empty()) words += ", cuDNN " + build.cudnn;
  if (!build.nccl.empty()) words += ", NCCL " + build.nccl;
  return words;
}

}  // namespace trestle
