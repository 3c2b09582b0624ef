#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace trestle::virt {

// Runs any operator on a virtual device by its CPU kernel: checks that all tensors are on one
// device, passes the kernel CPU views of the same memory and the right generator, charges its
// allocations to the device, and converts the results. About 1 us a call.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace trestle::virt
