#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace trestle::recompute {

// Stores the tensors that autograd saves.
class TensorKeeper {
 public:
  virtual ~TensorKeeper() = default;
  // The hooks of the next saved tensor.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
  // A backward begins in the thread while this keeper is active.
  virtual void record_backward() = 0;
};

// While it lives, `keeper` stores the tensors saved by the calling thread's operators; the
// innermost scope wins. Tensors that a backward saves (create_graph) are not stored. Needs
// install().
class KeeperScope {
 public:
  explicit KeeperScope(TensorKeeper& keeper);
  ~KeeperScope();
  KeeperScope(const KeeperScope&) = delete;
  KeeperScope& operator=(const KeeperScope&) = delete;
};

}  // namespace trestle::recompute
