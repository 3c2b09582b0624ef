#pragma once

#include <ATen/core/Generator.h>

#include <optional>

#include "trestle/device/random_draw.h"

// Random generators of virtual devices: each is a CPU generator under the device's name.
namespace trestle::virt {

// The CPU generator that an operator on `device` draws from: that of the generator it was given (a
// virtual or a CPU one), else of the thread's KeyedRandom, else of the device's default generator.
// Where the thread has tapes, `draw` is begun; it must live until the operator has drawn.
at::Generator host_generator(int device, const at::Generator& given,
                             std::optional<RandomDraw>& draw);

// Registers what libtorch asks of an accelerator beyond its kernels: generators,
// device counts, storage resizing.
void install_hooks();

}  // namespace trestle::virt
