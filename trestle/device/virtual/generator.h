#pragma once

#include <ATen/core/Generator.h>

#include <optional>

#include "trestle/device/random_draw.h"

// Random generators of virtual devices: each wraps a CPU generator.
namespace trestle::virt {

// The CPU generator for an operator on `device`: that of the given generator (a virtual or a CPU
// one), else of the thread's KeyedRandom, else of the device's default generator. If the thread has
// tapes, it also begins `draw`, which must live until the operator has drawn.
at::Generator host_generator(int device, const at::Generator& given,
                             std::optional<RandomDraw>& draw);

// Registers the accelerator hooks of libtorch: generators, device counts, storage resizing.
void install_hooks();

}  // namespace trestle::virt
