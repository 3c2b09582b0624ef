#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <optional>

namespace trestle {

// The CPU generator behind this thread's innermost KeyedRandom for `device` (cpu or virtual), made
// and seeded now if this is the first draw; nothing if no such scope is open.
std::optional<at::Generator> keyed_generator(at::Device device);

// Makes operators on CPU tensors ask keyed_generator(). Does its work once; call it before threads
// start, because it changes libtorch's operator tables.
void prepare_keyed_random();

}  // namespace trestle
