#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <optional>

namespace trestle {

// The CPU generator of this thread's innermost KeyedRandom for `device` (cpu or virtual), created
// and seeded at its first draw; nothing if no such scope is open.
std::optional<at::Generator> keyed_generator(at::Device device);

// Makes operators on CPU tensors use keyed_generator(). Does its work once. Call it before threads
// start, because it changes libtorch's operator tables.
void prepare_keyed_random();

}  // namespace trestle
