#pragma once

// libtorch's device guard for virtual devices: which device is current, and streams
// and events that are always done.
namespace trestle::virt {

void install_guard();

}  // namespace trestle::virt
