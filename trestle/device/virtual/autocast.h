#pragma once

// Autocast on virtual devices, with the operator lists of an accelerator.
namespace trestle::virt {

void register_autocast();

}  // namespace trestle::virt
