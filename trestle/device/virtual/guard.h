#pragma once

// libtorch's device guard for virtual devices: the current device, and streams and events that are
// always done.
namespace trestle::virt {

void install_guard();

}  // namespace trestle::virt
