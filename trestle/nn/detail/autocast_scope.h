#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>

namespace trestle::nn {

// The autocast settings of a thread, for the device types that trestle supports.
struct AutocastState {
  static constexpr std::array<c10::DeviceType, 3> device_types = {
      c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1};

  std::array<bool, 3> enabled = {};
  std::array<c10::ScalarType, 3> dtype = {};
  bool keeps_weights = true;  // cast weights once a scope (the cache), not at each use

  static AutocastState current();  // the calling thread's
  static AutocastState off();      // the calling thread's, with autocast disabled
  bool any_enabled() const { return enabled[0] || enabled[1] || enabled[2]; }
  friend bool operator==(const AutocastState&, const AutocastState&) = default;
};

// Sets the calling thread's autocast to `state` while it lives, as a nested scope.
//
// libtorch caches the weights that autocast has cast in one table for the whole process. It clears
// the table only at the end of the outermost scope, in that scope's thread. A worker's scope would
// leave casts behind that an optimizer step makes stale. Also, a run that needs a graph could find
// casts made without one, and the weights would get no gradient. So this class clears the table at
// its beginning and its end.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState before_;
  bool nested_;
};

}  // namespace trestle::nn
