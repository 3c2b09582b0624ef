#pragma once

// The operators of virtual devices: the fallback for all, direct kernels where it cannot serve.
namespace trestle::virt {

void register_kernels();

}  // namespace trestle::virt
