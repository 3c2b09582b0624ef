#pragma once

// The operators of virtual devices: the fallback for all, direct kernels where the fallback cannot
// work.
namespace trestle::virt {

void register_kernels();

}  // namespace trestle::virt
