#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

// Random numbers that depend on a key only, never on what other
// threads, stages or ranks drew before.
//
//   KeyedRandom random(device, keyed_seed(seed, step, layer, micro_batch));
//   x = layer(x);  // its dropout draws the same numbers wherever and whenever it runs
//
// While the object lives, every random operator that this thread runs on this device or on the CPU
// (a layer may draw there and move the numbers), without naming a generator, draws from a generator
// seeded with `seed`. For virtual devices and the CPU it is one generator that belongs to the thread,
// so ranks that share a device do not disturb each other, and the numbers are bit for bit those that
// the same layer on the CPU draws after torch::manual_seed(seed); the default generators are left
// alone. It is made at the first draw: a scope in which nothing draws costs next to nothing. On CUDA
// the device's default generator is seeded and its state put back at the end: one thread at a time
// per device.
//
// Scopes nest; the innermost one of a device wins and the outer continues where it was. The
// object belongs to the thread that made it, and scopes end in the reverse order of their
// beginning. It does not reach a backward's device threads; recomputation there opens its own
// scope.
namespace trestle {

struct KeyedScope;

class KeyedRandom {
 public:
  KeyedRandom(at::Device device, std::uint64_t seed);
  ~KeyedRandom();
  KeyedRandom(const KeyedRandom&) = delete;
  KeyedRandom& operator=(const KeyedRandom&) = delete;

 private:
  std::unique_ptr<KeyedScope> scope_;
};

}  // namespace trestle
