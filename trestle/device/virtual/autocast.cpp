#include "trestle/device/virtual/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <vector>

// libtorch's registration macros name their policies unqualified and expect a library named m.
namespace at::autocast {
namespace {

#define TRESTLE_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TRESTLE_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TRESTLE_FP32_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TRESTLE_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

void register_lists(torch::Library& m) {
  AT_FORALL_LOWER_PRECISION_FP(TRESTLE_LOWER_PRECISION)
  AT_FORALL_FP32(TRESTLE_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TRESTLE_FP32_SET_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TRESTLE_PROMOTE)
}

#undef TRESTLE_LOWER_PRECISION
#undef TRESTLE_FP32
#undef TRESTLE_FP32_SET_DTYPE
#undef TRESTLE_PROMOTE

}  // namespace
}  // namespace at::autocast

namespace trestle::virt {

void register_autocast() {
  static auto* libraries = new std::vector<torch::Library>;  // kept for the life of the process
  libraries->reserve(2);
  constexpr auto key = c10::DispatchKey::AutocastPrivateUse1;
  // Operators on no list fall through; without this every one of them fails under autocast.
  libraries->emplace_back(torch::Library::IMPL, "_", key, __FILE__, __LINE__)
      .fallback(torch::CppFunction::makeFallthrough());
  at::autocast::register_lists(
      libraries->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
}

}  // namespace trestle::virt
