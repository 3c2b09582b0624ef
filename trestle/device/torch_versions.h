#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#include <memory>

// The differences between the supported versions of libtorch. The tests run on 2.13, 2.15 was
// tried, and 2.11 and 2.12 compile with this header.
#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11
#error "trestle needs libtorch 2.11 or newer of the 2 series; 2.13 is the one its tests run on"
#endif

namespace trestle {

// A new node of an autograd graph: an intrusive pointer from 2.13 on, a std::shared_ptr before.
template <class Node>
auto make_node() {
#if TORCH_VERSION_MINOR >= 13
  return c10::make_intrusive<Node>();
#else
  return std::shared_ptr<Node>(new Node, torch::autograd::deleteNode);
#endif
}

}  // namespace trestle
