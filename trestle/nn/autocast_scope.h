#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>

// Autocast as a scope of its own.
namespace trestle::nn {

// What autocast does in a thread, for the device types that trestle runs on.
struct AutocastState {
  static constexpr std::array<c10::DeviceType, 3> device_types = {
      c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1};

  std::array<bool, 3> enabled = {};
  std::array<c10::ScalarType, 3> dtype = {};
  bool keeps_weights = true;  // are weights cast once a scope, or at each use?

  static AutocastState current();  // the calling thread's
  static AutocastState off();      // the calling thread's, with autocast disabled
  bool any_enabled() const { return enabled[0] || enabled[1] || enabled[2]; }
  friend bool operator==(const AutocastState&, const AutocastState&) = default;
};

// While it lives, the calling thread's autocast is as `state` says, in a nested scope.
//
// libtorch keeps the weights that autocast has cast in one table for the whole process, and empties
// it only where the outermost scope ends, in the thread where that is. A worker's scope would leave
// casts behind that an optimizer step then makes stale, and casts that were made without a graph
// would be found by a run that needs one: the weights would get no gradient. So the table is emptied
// where this scope begins and where it ends.
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
