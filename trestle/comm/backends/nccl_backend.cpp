#include "trestle/comm/backends/nccl_backend.h"

#ifdef TRESTLE_NCCL
#ifndef USE_C10D_NCCL
#define USE_C10D_NCCL
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace trestle::comm {

#ifdef TRESTLE_NCCL

bool has_nccl() { return true; }

c10::intrusive_ptr<c10d::Backend> nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size,
                                               std::chrono::milliseconds deadline) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = deadline;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

#else

bool has_nccl() { return false; }

c10::intrusive_ptr<c10d::Backend> nccl_backend(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                               std::chrono::milliseconds) {
  return {};
}

#endif

}  // namespace trestle::comm
