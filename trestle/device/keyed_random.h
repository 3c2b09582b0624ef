#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

// Random numbers that depend on a key only, never on the draws of other threads, stages or ranks.
//
//   KeyedRandom random(device, keyed_seed(seed, step, layer, micro_batch));
//   x = layer(x);  // its dropout draws the same numbers wherever and whenever it runs
//
// While the object lives, random operators of this thread on this device or on the CPU draw from a
// generator seeded with `seed`, unless they are given a generator. The CPU is included because a
// layer may draw there and move the numbers. For virtual devices and the CPU the generator belongs
// to the thread, so ranks that share a device do not disturb each other. The numbers are bit for
// bit those that the same layer draws on the CPU after torch::manual_seed(seed). The default
// generators are left alone. The generator is created at the first draw, so a scope without draws
// costs next to nothing. On CUDA the device's default generator is seeded and its state restored at
// the end: only one thread at a time may use it on a device.
//
// Scopes nest: the innermost one of a device is used, and the outer one then continues where it
// was. The object belongs to the thread that created it, and scopes end in the reverse order of
// their beginning. A scope does not reach the device threads of a backward; recomputation there
// opens its own scope.
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
