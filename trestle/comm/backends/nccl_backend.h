#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace trestle::comm {

// Whether this build has NCCL: it needs TRESTLE_CUDA and NCCL's header.
bool has_nccl();

// NCCL's backend for a group's GPU tensors, null in a build without NCCL. It connects at its first
// collective.
c10::intrusive_ptr<c10d::Backend> nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size,
                                               std::chrono::milliseconds deadline);

}  // namespace trestle::comm
