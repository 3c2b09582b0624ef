#pragma once

#include <memory>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/sharding/hooks/hooked.h"

namespace trestle::sharding {

class ShardEngine;

// Level Parameters, torch modules: each Hooked module is a unit, as far as
// ShardOptions::units.names and ::unit choose it, and the rest of the model is unit 0. Without
// Hooked modules the whole model is one unit.
class ModuleUnits {
 public:
  // Adds the units to the engine, before its finish(). `engine` outlives it.
  ModuleUnits(torch::nn::Module& model, const NamedTensors& parameters, const NamedTensors& buffers,
              ShardEngine& engine);
  // Attaches hooks to the Hooked modules, after the engine's finish(). They go with this object.
  void attach_hooks();
  bool has_hooked_modules() const { return !hooked_.empty(); }

 private:
  ShardEngine& engine_;
  std::vector<HookedModule*> hooked_;  // of each unit; null for the rest of the model
  std::vector<std::shared_ptr<UnitHook>> hooks_;
};

}  // namespace trestle::sharding
